"""NCCL's own report on a job that hangs: the ranks that have not launched the collective in which the others are.

Since NCCL 2.24 each process has a RAS thread that knows the whole job. It listens on port 28028 of the loopback interface
(NCCL_RAS_ADDR; off with NCCL_RAS_ENABLE=0). The protocol is text, a line a command (``src/ras/client.cc`` of NCCL):

    CLIENT PROTOCOL 2   answered by SERVER PROTOCOL and a number
    TIMEOUT 3           s that ranks have to answer it; answered by OK
    VERBOSE STATUS      answered by the report, and the end of the stream

Any process may listen on that port. So the report is read within bounds, its texts are cleaned, and it is shown as NCCL's words.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputop.model.ranges import Count, Pid, Ranks, fitted
from gputop.model.roles import SIZE_VARIABLES, number_in
from gputop.sources import netns, parse
from gputop.sources.files import read_once
from gputop.system.decoding import BROKEN
from gputop.system.errors import Unavailable, start_thread
from gputop.system.text import clean, counted

if TYPE_CHECKING:
    from gputop.stacks.lines import TextLine

PORT = 28028  # NCCL_RAS_CLIENT_PORT
LEAST_PORT = 1024  # below it system services listen, and any user may set NCCL_RAS_ADDR
RANKS_S = 3  # s that NCCL gives its ranks to answer; its own default is 5
TIMEOUT_S = 6.0  # s for the whole report: ranks that do not answer take twice `RANKS_S`
MOST_BYTES = 1 << 20  # of a report; 1,024 ranks that are all apart take 100 kB
MOST_RANKS, MOST_LINES = 256, 60  # that are kept of a report
LINE_CHARS, VERSION_CHARS = 160, 40  # of a line that is shown, and of a version
TRIES = 3  # reports that are read: several jobs of a user share the port, and the kernel chooses which process answers
MOST_DIFFERENT = 4  # settings of one job's ranks that are tried; mostly they are alike
_ENVIRON_BYTES = 1 << 18
_VARIABLES = frozenset(name.encode() for name in ("NCCL_RAS_ADDR", "NCCL_RAS_ENABLE", *SIZE_VARIABLES))

_TOTALS = re.compile(r"\s*\d{1,9}\s+[\d-]+\s+[\d-]+\s+(\d{1,9})\s+(\d{1,9})\s*")  # nodes, processes a node, GPUs a process, and all of both
_GROUP = re.compile(r"\s*(\d{1,9})\s+\d+\s+\d+\s+\S+\s+(\d{1,9})\s+\d+\s+[A-Z/]+\s+[A-Z/]+\s*")
_ABOUT = re.compile(r"#(\d{1,9})-\d+ \(([0-9a-f]+)\) ([A-Z]+)")
_DIFFER = re.compile(r"Communicator ranks have different (?:(\w+) operation counts|status)")
_MANY = re.compile(r"(\d{1,9}) ranks? have (?:(launched up to operation (\d{1,18})|not launched any operations)|status (\w+))")
_MANY_REPORTED = re.compile(r"(\d{1,9}) ranks? reported (.+)")
_ONE = re.compile(
    r"Rank (\d{1,9})(?: has (?:(launched up to operation (\d{1,18})|not launched any operations)|status (\w+))| reported (.+?))?"
    r"(?: -- (?:.* managed by process (\d{1,9}) on node (\S+)|\[.*))"
)


class NcclRank(Struct, frozen=True, omit_defaults=True):
    """A rank that NCCL finds apart from the others of its communicator."""

    rank: Ranks  # in its communicator
    size: Ranks  # ranks of the job; 0: not reported
    why: str  # ``launched 6649 of 6650 AllReduce``
    pid: Pid = 0  # in its own pid namespace; 0: not reported
    node: str = ""  # its address


class NcclReport(Struct, frozen=True, omit_defaults=True):
    """Report of NCCL on its job."""

    version: str = ""
    processes: Count = 0  # of the job
    gpus: Count = 0
    ranks: list[NcclRank] = field(default_factory=list)  # ranks that are apart
    lines: list[str] = field(default_factory=list)  # its errors and warnings, in its words
    problem: str = ""  # why there is no report

    @property
    def words(self) -> str:
        """The report in a sentence."""
        if self.problem:
            return f"no report: {self.problem}"
        if self.ranks:
            first = self.ranks[0]
            others = f", and {counted(len(self.ranks) - 1, 'rank')} more" if len(self.ranks) > 1 else ""
            where = f" (process {first.pid} on {first.node})" if first.pid else ""
            return f"rank {first.rank} of {first.size}{where}: {first.why}{others}"
        return "some ranks are apart" if self.lines else "all ranks answer, and have launched the same collectives"


def pack_report(found: NcclReport | None) -> bytes:
    """Bytes of a report, for another machine."""
    return msgspec.msgpack.encode(None if found is None else fitted(found))


def unpack_report(data: bytes) -> NcclReport | None:
    """The report in `pack_report`'s bytes, which any program may have written: bounded, its texts clean. ValueError without a report."""
    try:
        found: NcclReport | None = _decode(data)
    except BROKEN as error:
        raise ValueError(f"no report of NCCL: {clean(str(error), 80)}") from None
    return None if found is None else _bounded(found)


def _bounded(found: NcclReport) -> NcclReport:
    """The report with harmless texts, cut to what is shown."""
    ranks = [replace(one, why=clean(one.why, LINE_CHARS), node=clean(one.node, LINE_CHARS)) for one in found.ranks[:MOST_RANKS]]
    lines = [clean(line, LINE_CHARS) for line in found.lines[:MOST_LINES]]
    problem = clean(found.problem, LINE_CHARS)
    return replace(found, version=clean(found.version, VERSION_CHARS), ranks=ranks, lines=lines, problem=problem)


_decode = msgspec.msgpack.Decoder(NcclReport | None).decode


def told(found: NcclReport | None) -> list[TextLine]:
    """The report as lines before stacks."""
    from gputop.stacks.lines import TextLine

    if found is None:
        return []
    heading = TextLine("own" if found.lines else "note", f"NCCL {found.version}: {found.words}".replace("NCCL :", "NCCL:"))
    return [heading, *(TextLine("note", f"  {line}") for line in found.lines), TextLine("blank", "")]


def ask(pids: Iterable[int], timeout_s: float = TIMEOUT_S) -> NcclReport | None:
    """NCCL's report on the job of these processes of this machine; takes up to ``timeout_s``. None if no process is one of several
    ranks."""
    deadline = time.monotonic() + timeout_s
    found: NcclReport | None = None
    for pid, environment in list(_settings(pids).items())[:MOST_DIFFERENT]:
        try:
            return _of_job(pid, _place(environment), number_in(environment, SIZE_VARIABLES) or 0, deadline)
        except Unavailable as error:  # noqa: PERF203 - a few
            found = NcclReport(problem="; ".join(filter(None, (error.reason, error.remedy))))
    return found


def _settings(pids: Iterable[int]) -> dict[int, dict[str, str]]:
    """Pid of a rank -> its variables about RAS; one pid for each network and setting."""
    found: dict[tuple[str, ...], tuple[int, dict[str, str]]] = {}
    for pid in pids:
        network = ""  # another user's: the stacks say why, and the port may be asked all the same
        with suppress(PermissionError):
            try:
                network = os.readlink(f"/proc/{pid}/ns/net")
            except FileNotFoundError:
                continue
        environment = _environment(pid)
        if (number_in(environment, SIZE_VARIABLES) or 0) > 1:
            found.setdefault((network, *environment.values()), (pid, environment))
    return dict(found.values())


def _environment(pid: int) -> dict[str, str]:
    return parse.environ(read_once(f"/proc/{pid}/environ", _ENVIRON_BYTES) or b"", _VARIABLES)


def _place(environment: dict[str, str]) -> tuple[str, int]:
    """(address, port) of the loopback interface, by a process's environment."""
    if environment.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        raise Unavailable("NCCL's RAS is off", "start the job without NCCL_RAS_ENABLE=0")
    where = environment.get("NCCL_RAS_ADDR", "")
    host, _, port = where.rpartition(":")
    if not where:
        return "localhost", PORT
    host = host.strip("[]")
    if port.isdecimal() and LEAST_PORT <= int(port) < 1 << 16:
        if host == "localhost":
            return host, int(port)
        try:
            address = ip_address(host)
        except ValueError:
            pass
        else:
            if address.is_unspecified:
                return "::1" if address.version == 6 else "127.0.0.1", int(port)
            if address.is_loopback:
                return host, int(port)
    raise Unavailable(f"NCCL_RAS_ADDR={clean(where, 80)} is not on the loopback interface", "set it to localhost:28028")


def _of_job(pid: int, place: tuple[str, int], size: int, deadline: float) -> NcclReport:
    found = NcclReport()
    for _ in range(TRIES):
        found = read_report(_in_network_of(pid, place, deadline))
        if size in (found.processes, found.gpus):
            return found
    raise Unavailable(f"NCCL reports a job of {found.processes} ranks there, not of {size}")


def _in_network_of(pid: int, place: tuple[str, int], deadline: float) -> str:
    """`_talk`, in the network namespace of a process: a thread of its own enters it, and ends there."""
    done: SimpleQueue[str | Unavailable] = SimpleQueue()

    def work() -> None:
        try:
            _enter(pid)
            done.put(_talk(place, deadline))
        except Unavailable as problem:
            done.put(problem)

    if start_thread(work, "nccl") is None:
        raise Unavailable("no more threads are allowed here")
    try:
        answer = done.get(timeout=max(0.0, deadline + 0.5 - time.monotonic()))
    except Empty:
        raise Unavailable("NCCL does not answer in time") from None
    if isinstance(answer, Unavailable):
        raise answer
    return answer


def _enter(pid: int) -> None:
    """Make this thread's network that of a process. Unavailable if that is another, and not to be entered."""
    space = netns.namespace(f"/proc/{pid}/")
    if space in (0, netns.namespace("/proc/thread-self/")):
        return  # 0: another user's, whose network is most likely this one
    if not netns.enter(f"/proc/{pid}/ns/net", space):
        raise Unavailable("its network is its container's", "run gputop stacks as root, or in the container")


def _talk(place: tuple[str, int], deadline: float) -> str:
    """The report as text."""
    host, port = place
    addresses = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    for address in addresses:
        try:
            with socket.create_connection((address, port), max(0.1, deadline - time.monotonic())) as line:
                return _converse(line, deadline)
        except ConnectionRefusedError:  # noqa: PERF203 - two
            continue
        except TimeoutError:
            raise Unavailable("NCCL does not answer in time") from None
        except OSError as error:
            raise Unavailable(f"NCCL's RAS port cannot be asked: {error.strerror or error}") from None
    raise Unavailable(f"nothing listens on {host}:{port}", "NCCL from 2.24 on does, as long as its job runs")


def _converse(line: socket.socket, deadline: float) -> str:
    read = bytearray()

    def receive(*, whole: bool) -> bytes:
        """A line; ``whole``: all up to the end."""
        while whole or b"\n" not in read:
            line.settimeout(max(0.01, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                raise TimeoutError
            data = line.recv(1 << 16)
            if not data:
                break
            read.extend(data)
            if len(read) > MOST_BYTES:
                raise Unavailable(f"its answer is larger than {MOST_BYTES >> 20} MiB: another program, or too many ranks")
        end = len(read) if whole else read.find(b"\n") + 1 or len(read)
        said = bytes(read[:end])
        del read[:end]
        return said

    line.sendall(b"CLIENT PROTOCOL 2\n")
    if not (said := receive(whole=False)).upper().startswith(b"SERVER PROTOCOL "):
        raise Unavailable(f"another program listens on NCCL's port; it sent {clean(said.decode(errors='replace').strip(), 60)!r}")
    line.sendall(b"TIMEOUT %d\n" % RANKS_S)
    receive(whole=False)  # OK; an NCCL without TIMEOUT answers with an error, and goes on
    line.sendall(b"VERBOSE STATUS\n")
    return receive(whole=True).decode(errors="replace")


def read_report(text: str) -> NcclReport:
    """Parse a report. Raises Unavailable if the text is no report."""
    version, totals, sizes = "", (0, 0), dict[int, int]()
    ranks: dict[tuple[str, int], NcclRank] = {}
    lines: list[str] = []
    block = _CommunicatorReport()
    is_about = False  # within errors and warnings
    for raw in text.splitlines():
        line = clean(raw.rstrip(), LINE_CHARS)
        if line.startswith("NCCL version ") and not version:
            version = line.removeprefix("NCCL version ").partition(" ")[0]
        elif not sizes and (both := _TOTALS.fullmatch(line)):
            totals = int(both[1]), int(both[2])
        elif group := _GROUP.fullmatch(line):
            sizes[int(group[1])] = int(group[2])
        elif line in ("Errors", "Warnings"):
            is_about = True
        elif is_about and line and set(line) != {"="}:
            if not line.startswith(" "):
                block.close(ranks)
                about = _ABOUT.match(line)
                block = _CommunicatorReport(about[2], sizes.get(int(about[1]), 0), about[3]) if about else _CommunicatorReport()
            else:
                block.add(line.strip(), ranks)
            if len(lines) < MOST_LINES:
                lines.append(line)
    block.close(ranks)
    if not version or not sizes or not all(totals):
        raise Unavailable("NCCL's report cannot be read: no communicators in it")
    apart = sorted(ranks.values(), key=lambda one: (-one.size, one.rank))
    return _bounded(NcclReport(version, *totals, apart, lines))


class _CommunicatorReport:
    """One communicator in a report, taken in line by line."""

    def __init__(self, name: str = "", size: int = 0, kind: str = "") -> None:
        self._name, self._size, self._kind = name, size, kind
        self._operation: str | None = None  # their counts follow
        self._count = 0  # that the ranks in the next lines have launched
        self._status = ""
        self._most = 0
        self._launched: dict[int, tuple[int, int, str]] = {}  # rank -> count, pid, node

    def add(self, line: str, ranks: dict[tuple[str, int], NcclRank]) -> None:
        if differ := _DIFFER.match(line):
            self.close(ranks)
            self._operation = "collectives" if differ[1] == "collective" else differ[1]
        elif many := _MANY.match(line):
            self._count = int(many[3] or 0)
            self._most = max(self._most, self._count)
            self._status = many[4] or ""
        elif reported := _MANY_REPORTED.match(line):
            self._status = reported[2]
        elif one := _ONE.match(line):
            self._add_rank(one, ranks)

    def _add_rank(self, one: re.Match[str], ranks: dict[tuple[str, int], NcclRank]) -> None:
        rank, pid, node = int(one[1]), int(one[6] or 0), one[7] or ""
        if self._operation is not None:
            count = int(one[3] or 0) if one[2] or "not launched" in one[0] else self._count
            self._most = max(self._most, count)
            self._launched[rank] = count, pid, node
            return
        said = one[4] or one[5] or self._status
        apart = f"has status {said}" if said else "is apart"
        why = {"INCOMPLETE": "does not answer NCCL", "ERROR": f"reports: {said}"}.get(self._kind, apart)
        ranks.setdefault((self._name, rank), NcclRank(rank, self._size, why, pid, node))

    def close(self, ranks: dict[tuple[str, int], NcclRank]) -> None:
        """Name the ranks that have launched fewer collectives than the others."""
        for rank, (count, pid, node) in self._launched.items():
            if count < self._most:
                why = f"launched {count} of {self._most} {self._operation}"
                ranks.setdefault((self._name, rank), NcclRank(rank, self._size, why, pid, node))
        self._operation, self._count, self._status, self._most = None, 0, "", 0
        self._launched = {}
