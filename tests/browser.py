"""A headless Chromium, driven by the DevTools protocol over a pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.require import BROWSERS
from tests.wait import PATIENCE_S


def program() -> str | None:
    """Where it is."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Browser:
    """One tab."""

    def __init__(self, to: int, by: int) -> None:
        self._to, self._by, self._begun, self._id = to, os.fdopen(by, "rb", buffering=0), b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []  # what the page told of itself: requests, exceptions, console
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Performance"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: object) -> Any:
        """Call a method of the protocol."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params} | ({"sessionId": self._session} if self._session else {})
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (got := self._read()).get("id") != self._id:
            self.events.append(got)
        assert "error" not in got, (method, got["error"])
        return got["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._begun:
            part = self._by.read(1 << 16)
            assert part, "the browser is gone"
            self._begun += part
        line, _, self._begun = self._begun.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> float:
        """Open a file as a window of this size does, a narrow one on a phone; the seconds of CPU that the page's thread took until it was
        drawn, which on a quiet machine is nearly all that its reader waits for."""
        self.resize(width, height, dark)
        self.events.clear()
        began = time.monotonic()
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() - began < PATIENCE_S
            self.events.append(self._read())
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        took = {metric["name"]: metric["value"] for metric in self.ask("Performance.getMetrics")["metrics"]}
        return float(took["ThreadTime"])  # since the navigation

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def run(self, script: str) -> Any:
        """The value of an expression in the page, of a promise what it gives."""
        got = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key on what has the focus."""
        known = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, " ": 32, "Tab": 9, "Enter": 13}
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=known.get(key, ord(key[0].upper())), **more)

    def tap(self, x: float, y: float) -> None:
        """Touch a place."""
        self.ask("Emulation.setTouchEmulationEnabled", enabled=True)
        self.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def picture(self, path: Path, whole: bool = True) -> None:
        """Save what is seen, or the ``whole`` page, as PNG."""
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in ``folder``."""
    found = program()
    assert found is not None
    pipes = [os.pipe(), os.pipe()]
    (_, to), (by, _) = pipes
    reads, writes = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (pipes[0][0], pipes[1][1]))  # out of the way of 3 and 4
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder}"]  # fmt: skip
    # The protocol's descriptors are 3 and 4.
    command = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", found, *flags]
    child = subprocess.Popen(
        command,
        pass_fds=(reads, writes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for fd in (reads, writes, pipes[0][0], pipes[1][1]):
        os.close(fd)
    try:
        yield Browser(to, by)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(to)
