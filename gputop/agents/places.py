"""Places that a question can go to: a file, this machine, or a host. Each is read as a recording.

This machine and hosts are nodes of `gputop.fleet`: each keeps its last ten minutes, and hands them over when asked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gputop.agents.children import Children
from gputop.fleet.asking import read_stacks
from gputop.fleet.link import CONNECTING, UP, NodeState
from gputop.fleet.links import Links
from gputop.fleet.overview import Overview, sight_of
from gputop.model.frame import Stack
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.stream.played import parts_of
from gputop.stream.reach import Target
from gputop.system.errors import UserError
from gputop.system.text import clean, counted, from_shell

LIVE, HOSTS, HOST = "live", "hosts", "host:"  # targets: this machine, all hosts, ``host:NAME``
LOOK_S = 8.0  # s that a node is watched before it is judged: a verdict lasts some windows of 2.5 s
BEGINS_S = 20.0  # s for a node to answer: ssh gives up after 5 s, a collector starts in 1 s, on a busy node in 5 (guess)
ANSWER_S = 20.0  # s for a node's answer; ten minutes are 20 MB at most
WAIT_S = 0.05  # s between looks for an answer
IDLE_S = 600.0  # s without a question, after which nodes are left: watching costs a node 4 % of a core (a choice)
MOST_LISTED = 20  # recordings of a folder that are named


class LazyLinks:
    """Links that begin with the first question."""

    def __init__(self, targets: Sequence[Target], flags: Sequence[str]) -> None:
        self.targets = list(targets)
        self._flags = list(flags)
        self._links: Links | None = None
        self._fleet = Overview()

    def begin(self) -> Links:
        """Connect, if that has not been done."""
        if self._links is None:
            self._links, self._fleet = Links(self.targets, self._flags), Overview()
        return self._links

    def close(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None

    def watch(self, hosts: Sequence[str], seen_s: float) -> list[NodeState]:
        """States of the hosts, once each has been up for ``seen_s`` or has given a reason for its silence."""
        links, end_s = self.begin(), time.monotonic() + BEGINS_S + seen_s
        while True:
            states = links.poll()
            told = [states[host] for host in hosts]
            if time.monotonic() > end_s or all(_is_settled(one, seen_s) for one in told):
                return told
            time.sleep(WAIT_S)

    def fleet(self) -> Overview:
        """All hosts and their jobs, as they stand now."""
        states = self.watch([one.host for one in self.targets], LOOK_S)
        self._fleet.take([sight_of(state) for state in states])
        return self._fleet

    def ask(self, host: str, what: str, take: Callable[[bytes], None], pids: Sequence[int] = (), seen_s: float = 0.0) -> None:
        """Ask a node (`gputop.fleet.asking`); ``take`` gets each piece of the answer. UserError if none comes."""
        [state] = self.watch([host], seen_s)
        if state.state != UP:
            raise UserError(f"{host}: {state.reason or 'it does not answer yet'}")
        links, end_s = self.begin(), time.monotonic() + ANSWER_S
        number = links.ask(host, what, pids=pids)
        while time.monotonic() < end_s:
            for who, answer in links.answers():
                if who != host or answer.id != number:
                    continue
                if answer.error:
                    raise UserError(f"{host}: {answer.error}")
                take(answer.data)
                if not answer.more:
                    return
            time.sleep(WAIT_S)
        raise UserError(f"{host} did not answer within {ANSWER_S:.0f} s")


def _is_settled(state: NodeState, seen_s: float) -> bool:
    return state.since_s >= seen_s if state.state == UP else state.state != CONNECTING


class Places:
    """The targets that may be asked about. One question at a time: hold `lock`."""

    def __init__(
        self, files: Sequence[str] = (), folder: str = "", hosts: Sequence[Target] = (), flags: Sequence[str] = (), anywhere: bool = True
    ) -> None:
        """``folder``: of recordings; ``flags``: of collectors; ``anywhere``: other files may be named, too."""
        self.lock = threading.Lock()
        self.children = Children()
        self._files = {from_shell(path): os.path.realpath(path) for path in files}
        self._folder = os.path.realpath(folder) if folder else ""
        self._anywhere = anywhere and not folder
        self._live = LazyLinks([Target(LIVE, "local")], flags)
        self.hosts = LazyLinks(hosts, [flag for flag in flags if flag != "--sudo"])
        self.default = next(iter(self._files)) if files else HOSTS if hosts else LIVE
        self._asked_s = time.monotonic()

    def close(self) -> None:
        """Leave all nodes, and end what a question has started."""
        self.children.end()
        self._live.close()
        self.hosts.close()

    def rest(self) -> None:
        """Leave the nodes after a long time without a question. Call it now and then."""
        if time.monotonic() - self._asked_s > IDLE_S and self.lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.lock.release()

    def known(self) -> list[str]:
        """Targets that can be named, recordings of the folder among them."""
        names = [LIVE, *([HOSTS, *(f"{HOST}{one.host}" for one in self.hosts.targets)] if self.hosts.targets else [])]
        return [*names, *self._recordings()[:MOST_LISTED]]

    def _recordings(self) -> list[str]:
        try:
            listed = sorted(os.listdir(self._folder), reverse=True) if self._folder else []
        except OSError:
            listed = []
        return [*self._files, *(name for name in listed if name.endswith(".gputop"))]

    def has_many(self, target: str) -> bool:
        """True if the target is all hosts together. UserError if none are watched."""
        if target == HOSTS and not self.hosts.targets:
            raise UserError(f"no hosts are watched: gputop mcp --host LIST; {self._targets_line()}")
        return (target or self.default) == HOSTS

    def is_now(self, target: str) -> bool:
        """True if the target is a machine, not a file."""
        target = target or self.default
        return target == LIVE or target.startswith(HOST)

    @contextmanager
    def recording(self, target: str, seen_s: float | None = None) -> Iterator[Recording]:
        """The recording of a target; of a machine its last ten minutes, watched for ``seen_s`` (`LOOK_S`) at least. UserError."""
        self._asked_s = time.monotonic()
        if not self.is_now(target):
            with open_recording(parts_of(self._path(target or self.default))) as recording:
                yield recording
            return
        nodes, host = self._node(target)
        fd = os.memfd_create("gputop", os.MFD_CLOEXEC)
        try:
            nodes.ask(host, "save", lambda data: _write(fd, data), seen_s=LOOK_S if seen_s is None else seen_s)
            with open_recording([f"/proc/{os.getpid()}/fd/{fd}"]) as recording:
                yield recording
        finally:
            os.close(fd)

    def stacks(self, target: str, pids: Sequence[int]) -> list[Stack]:
        """Stacks of processes of a machine, taken now."""
        data = bytearray()
        nodes, host = self._node(target)
        nodes.ask(host, "stacks", data.extend, pids)
        try:
            return read_stacks(data)
        except ValueError as error:
            raise UserError(f"{host}: {error}") from None

    def _node(self, target: str) -> tuple[LazyLinks, str]:
        target = target or self.default
        if target == LIVE:
            return self._live, LIVE
        host = target.removeprefix(HOST)
        if host not in [one.host for one in self.hosts.targets]:
            raise UserError(f"there is no host {clean(host, 80)!r}: {self._targets_line()}")
        return self.hosts, host

    def _path(self, target: str) -> str:
        """The file that is meant, which must be allowed, and a file: a device or a pipe could hang whoever reads it."""
        if target == HOSTS:
            raise UserError(f"name one host: {self._targets_line()}")
        try:
            path = self._files.get(target) or os.path.realpath(os.path.join(self._folder, target))
        except ValueError:  # a null character, half a character
            raise UserError(f"there is no recording {clean(target, 80)!r}: {self._targets_line()}") from None
        within = self._folder and os.path.commonpath([path, self._folder]) == self._folder
        if not (self._anywhere or within or path in self._files.values()):
            raise UserError(f"{clean(target, 80)!r} may not be read: {self._targets_line()}")
        if not os.path.isfile(path):
            raise UserError(f"there is no recording {clean(target, 80)!r}: {self._targets_line()}")
        return path

    def _targets_line(self) -> str:
        known = self.known()
        more = f" and {counted(len(known) - 5, 'more')}" if len(known) > 6 else ""
        return f"targets are {', '.join(clean(one, 80) for one in known[:6])}{more}{', or a file' if self._anywhere else ''}"


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
