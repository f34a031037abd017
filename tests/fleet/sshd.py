"""Machines that are network namespaces on a bridge, each with a real sshd and a name of its own. Needs root.

The viewer's ``ssh`` is the real one, run in the bridge's namespace, so that nothing of the machine's own network is touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.wait import until

ROOT = Path(__file__).parent.parent.parent
NETWORK = "10.213.7"
GPUTOP = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m gputop "$@"\n'


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machines:
    """Machines by name; ``aliases``: more names of the first one."""

    def __init__(self, folder: Path, names: Sequence[str], aliases: Sequence[str] = ()) -> None:
        self.folder = folder
        self.names = list(names)
        self._hub = f"gt-hub-{os.getpid()}"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 1)} | dict.fromkeys(aliases, f"{NETWORK}.1")
        self._write_client(addresses)

    def gputop(self, name: str, script: str = GPUTOP) -> None:
        """What ``gputop`` is on a machine."""
        path = self.folder / name / "gputop"
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def start(self) -> None:
        """The bridge, and all machines."""
        ip("netns", "add", self._hub)
        ip("-n", self._hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self._hub, "addr", "add", f"{NETWORK}.254/24", "dev", "br0")
        ip("-n", self._hub, "link", "set", "br0", "up")
        for number, name in enumerate(self.names, 1):
            space = self._space(name)
            ip("netns", "add", space)
            ip("-n", self._hub, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", self._hub, "link", "set", f"v{number}", "master", "br0", "up")
            ip("-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "eth0", "up")
            self._serve(name)
        for name in self.names:
            until(lambda name=name: b"Server listening" in (self.folder / name / "log").read_bytes())

    def link(self, name: str, state: str) -> None:
        """Pull a machine's cable (``down``), or put it back (``up``)."""
        ip("-n", self._hub, "link", "set", f"v{self.names.index(name) + 1}", state)

    def slow_down(self, name: str, rate: str) -> None:
        """Let a machine send so much a second."""
        shape = ["tbf", "rate", rate, "burst", "4kb", "latency", "400ms"]
        subprocess.run(["tc", "-n", self._space(name), "qdisc", "add", "dev", "eth0", "root", *shape], check=True, capture_output=True)

    def stop(self) -> None:
        """End the servers with all that runs on them, and remove what `start` made."""
        for space in (*map(self._space, self.names), self._hub):
            listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False).stdout.split()
            for pid in map(int, listed):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        for server in self._servers.values():
            server.wait()

    def _space(self, name: str) -> str:
        return f"gt-{name}-{os.getpid()}"

    def _serve(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "config").write_text(  # with SHLVL bash takes itself for no login's and reads no .bashrc, which may be slow
            f"HostKey {self.folder}/key\nAuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\nUseDNS no\nPidFile none\n"
            f"PermitRootLogin prohibit-password\nPrintMotd no\nPrintLastLog no\nSetEnv PATH={folder}:/usr/bin:/bin SHLVL=1\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        with (folder / "log").open("wb") as log:
            words = ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec /usr/sbin/sshd -D -e -f "$0"', str(folder / "config")]
            self._servers[name] = subprocess.Popen(["ip", "netns", "exec", self._space(name), *words], stderr=log, stdin=subprocess.DEVNULL)

    def _write_client(self, addresses: dict[str, str]) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key")], check=True)
        lines = [f"Host {name}\n  HostName {address}" for name, address in addresses.items()]
        common = f"IdentityFile {self.folder}/key\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\nUser root"
        (self.folder / "client").write_text("\n".join([*lines, f"Host *\n{common}\n"]))
        (self.folder / "bin").mkdir()
        script = self.folder / "bin" / "ssh"
        script.write_text(f'#!/bin/sh\nexec ip netns exec {self._hub} /usr/bin/ssh -F {self.folder}/client "$@"\n')
        script.chmod(0o755)


@contextmanager
def machines(folder: Path, names: Sequence[str], aliases: Sequence[str] = (), script: str = GPUTOP) -> Iterator[Machines]:
    """Machines that run; their ``ssh`` stands first on PATH meanwhile."""
    made, path = Machines(folder, names, aliases), os.environ["PATH"]
    os.environ["PATH"] = f"{folder}/bin:{path}"
    try:
        for name in names:
            made.gputop(name, script)
        made.start()
        yield made
    finally:
        os.environ["PATH"] = path
        made.stop()


def took(holds: object, within_s: float) -> float:
    """Seconds until ``holds()``."""
    began = time.monotonic()
    assert callable(holds)
    until(holds, within_s)
    return time.monotonic() - began
