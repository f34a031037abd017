"""The real Prometheus and promtool, on free ports of this machine, ended by the end of a test."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.wait import PATIENCE_S, until

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGING = ROOT / "packaging"
RULES = PACKAGING / "prometheus/rules.yml"


def promtool(*arguments: object, given: bytes = b"") -> str:
    """What it prints; the test fails where it finds fault."""
    done = subprocess.run(["promtool", *map(str, arguments)], input=given, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


class Prometheus:
    """A running one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    @property
    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def ask(self, expr: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """The samples of an expression, now or at a Unix time; fails where it is wrong."""
        query = {"query": expr} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{urllib.parse.urlencode(query)}", timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return list(found["data"]["result"])

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes, and how that went last."""
        with urllib.request.urlopen(f"{self.url}/api/v1/targets", timeout=PATIENCE_S) as answer:
            return list(json.load(answer)["data"]["activeTargets"])


@contextmanager
def _running(command: list[str], port: int) -> Iterator[Prometheus]:
    """A server that answers on ``port``, until it is no longer needed."""
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        one = Prometheus(port)
        until(lambda: one.is_ready)
        yield one
    finally:
        running.kill()
        running.wait()


@contextmanager
def prometheus(
    folder: Path, scrape: dict[str, Any] | None = None, rules: Path | None = None, alertmanager: str = "", every: str = "1s"
) -> Iterator[Prometheus]:
    """One whose data are in ``folder/data``. ``scrape``: an entry of scrape_configs; JSON is YAML. ``alertmanager``: its host and port."""
    config: dict[str, Any] = {"global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}}
    config |= {"scrape_configs": [scrape]} if scrape else {}
    config |= {"rule_files": [str(rules)]} if rules else {}
    config |= {"alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}} if alertmanager else {}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y", "--log.level=error",
    ]  # fmt: skip
    with _running(command, port) as one:
        yield one


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    """The host and port of one that posts each alert by itself to ``webhook``, when it fires and when it is over."""
    route = {"receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    config = {"route": route, "receivers": [{"name": "hook", "webhook_configs": [{"url": webhook}]}]}
    (folder / "alertmanager.yml").write_text(json.dumps(config))
    port = free_port()
    command = [
        "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alertmanager",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=error",
    ]  # fmt: skip
    with _running(command, port):
        yield f"127.0.0.1:{port}"
