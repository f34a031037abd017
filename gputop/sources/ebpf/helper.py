"""Checks whether probes may be loaded here, and runs the short-lived helper under the system's Python that loads them.

The helper gets the name of an abstract Unix socket and connects to it; that works through sudo too, which closes inherited descriptors. It
hands over its descriptors there. What it prints is kept: it is the reason if something fails.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import struct
import time
from contextlib import suppress
from threading import Thread

from gputop.sources import Unavailable
from gputop.sources.files import read_text
from gputop.system.priority import LOADER, lowered_to
from gputop.system.privilege import CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, capabilities, in_initial_pid_namespace

_INSTALL = {
    "debian": "apt install python3-bpfcc", "ubuntu": "apt install python3-bpfcc", "fedora": "dnf install python3-bcc",
    "rhel": "dnf install python3-bcc", "arch": "pacman -S python-bcc", "suse": "zypper install python3-bcc",
}  # fmt: skip


def may_load(bits: int) -> bool:
    """True if these capabilities suffice to load probes: CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON."""
    return bool(bits >> CAP_SYS_ADMIN & 1 or (bits >> CAP_BPF & 1 and bits >> CAP_PERFMON & 1))


def lockdown(root: str = "/") -> str:
    """``none``, ``integrity`` or ``confidentiality``; with the last, probes may not read kernel memory."""
    text = read_text(root, "sys/kernel/security/lockdown")
    return text.partition("[")[2].partition("]")[0] or "none"


def privilege(root: str = "/") -> str:
    """The command that gives the right to load probes. If even root lacks it, this is a container."""
    if os.geteuid() != 0 and may_load(capabilities(root, "CapBnd")):
        return "gputop --sudo"
    return f"start the container with {'--user 0 ' if os.geteuid() else ''}--cap-add SYS_ADMIN --cap-add SYS_PTRACE"


def install_bcc(root: str = "/") -> str:
    """The command that installs iovisor's bcc on this distribution."""
    for line in read_text(root, "etc/os-release").splitlines():
        key, _, value = line.partition("=")
        for word in value.strip('"').split() if key in ("ID", "ID_LIKE") else ():
            if word in _INSTALL:
                return _INSTALL[word]
    return "install your distribution's python3-bpfcc or python3-bcc"


def check(root: str, sudo: bool) -> None:
    """Raise Unavailable if loading is certain to fail."""
    if not in_initial_pid_namespace():
        raise Unavailable("in a pid namespace of its own: the probes do not know its pids", "start the container with --pid=host")
    if not find_python():
        raise Unavailable("there is no /usr/bin/python3 to run bcc in", install_bcc(root))
    if lockdown(root) == "confidentiality":
        raise Unavailable("the kernel is locked down (confidentiality)", "boot with lockdown=integrity")
    if not sudo and not may_load(capabilities(root)):
        raise Unavailable("needs root, or CAP_BPF and CAP_PERFMON", privilege(root))


PYTHON = "/usr/bin/python3"  # has the distribution's bcc; a virtual environment's Python has none
_GIVE_UP_S = 20.0  # s after which a helper has failed
_LOOK_EVERY_S = 0.005  # s between two looks at it


class HelperFailed(Exception):
    """The helper ended without handing anything over; its text is a line with the reason."""


def find_python() -> str:
    """Path of the system's Python; empty without one."""
    return PYTHON if os.access(PYTHON, os.X_OK) else ""


def telling_line(printed: bytes) -> str:
    """The most useful line: a compiler's first error, else the last line about an error."""
    lines = [line.strip() for line in printed.decode(errors="replace").splitlines() if line.strip()]
    compiler = [line for line in lines if " error: " in line][:1]
    telling = [line for line in lines if "rror" in line or "denied" in line or "password" in line]
    return (compiler or telling or lines or [""])[-1]


class Helper:
    """One run of ``script``. Call `poll` until it returns (answer, descriptors)."""

    def __init__(self, script: str, *arguments: str, sudo: bool = False) -> None:
        name = f"gputop-{os.getpid()}-{os.urandom(8).hex()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + name)
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._output = os.memfd_create("gputop-helper")
        self._started = time.monotonic()
        self._peer: socket.socket | None = None
        self._status: int | None = None
        command = [*(["sudo", "-n"] if sudo else []), PYTHON, "-I", script, name, *arguments]
        try:
            self.pid = self._spawn(command)
        except OSError as error:
            self.close()
            raise HelperFailed(f"{command[0]}: {error.strerror}") from None

    def send(self, message: bytes, descriptors: list[int], wait_s: float) -> None:
        """Send it a request once it has connected. Raises HelperFailed if it does not connect in time, OSError if it has ended."""
        self._started = time.monotonic()
        deadline = self._started + wait_s
        while not self._accept():
            if time.monotonic() > deadline:
                raise HelperFailed("the helper did not answer")
            self._check_alive()
            time.sleep(_LOOK_EVERY_S)
        assert self._peer is not None
        self._peer.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])

    def poll(self) -> tuple[dict[str, object], list[int]] | None:
        """(answer, descriptors) that the helper has handed over; None while it works. Raises HelperFailed."""
        answer = self._receive() if self._accept() else None
        if answer is None:
            self._check_alive()
            return None
        return answer

    def wait(self, seconds: float) -> tuple[dict[str, object], list[int]]:
        """(answer, descriptors) that the helper hands over within ``seconds``. Raises HelperFailed."""
        deadline = time.monotonic() + seconds
        while (answer := self.poll()) is None:
            if time.monotonic() > deadline:
                raise HelperFailed("the helper did not answer")
            time.sleep(_LOOK_EVERY_S)
        return answer

    def close(self) -> None:
        """Close the sockets; kill the helper if it still runs, and reap it without waiting."""
        for thing in (self._listener, self._peer):
            if thing is not None:
                thing.close()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1
        if getattr(self, "pid", 0) and self._status is None:
            with suppress(ProcessLookupError, PermissionError):  # sudo cannot be killed: it ends with its helper
                os.kill(self.pid, signal.SIGKILL)
            with suppress(RuntimeError):  # no more threads: it stays a zombie until this process ends
                Thread(target=self._reap, args=(0,), name="gputop-reaper", daemon=True).start()

    def printed(self) -> str:
        """The most useful line of its output, see `telling_line`."""
        return telling_line(os.pread(self._output, 1 << 16, max(0, os.fstat(self._output).st_size - (1 << 16))))

    def _spawn(self, command: list[str]) -> int:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, self._output, 1),
            (os.POSIX_SPAWN_DUP2, self._output, 2),
        ]
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TERM") if name in os.environ}
        return os.posix_spawnp(command[0], command, environment, file_actions=actions, **lowered_to(LOADER))

    def _accept(self) -> bool:
        if self._peer is not None:
            return True
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return False
        uid = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (0, os.geteuid()):
            peer.close()
            return False
        peer.setblocking(False)
        self._peer = peer
        return True

    def _receive(self) -> tuple[dict[str, object], list[int]] | None:
        assert self._peer is not None
        try:
            message, descriptors, _, _ = socket.recv_fds(self._peer, 1 << 20, 128)
        except BlockingIOError:
            return None
        except OSError:
            return None
        if not message:
            return None
        return json.loads(message), descriptors

    def _check_alive(self) -> None:
        if self._status is None:
            self._reap(os.WNOHANG)
        if self._status is not None and not self._connected_late():
            raise HelperFailed(self._epitaph())
        if time.monotonic() - self._started > _GIVE_UP_S:
            raise HelperFailed(f"it did not finish within {_GIVE_UP_S:.0f} s")

    def _connected_late(self) -> bool:
        """True if the helper has ended, but its message is still to be read."""
        if not self._accept():
            return False
        assert self._peer is not None
        try:
            return bool(self._peer.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _reap(self, flags: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, flags)
        except ChildProcessError:
            pid, status = self.pid, 0
        if pid:
            self._status = status

    def _epitaph(self) -> str:
        status = self._status or 0
        if os.WIFSIGNALED(status):
            return f"it was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return self.printed() or f"it ended with status {os.WEXITSTATUS(status)}"
