"""What is over the screen over many nodes for a while: stacks of all ranks, why; and the files that `R` writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace
from textual.binding import Binding

from gputop.fleet.asking import NodeAnswer, read_stacks
from gputop.fleet.jobs import Job, JobRank, Sight
from gputop.fleet.questions import Questions, ask_nccl
from gputop.model.frame import Stack
from gputop.model.roles import Role
from gputop.stacks import nccl
from gputop.stacks.group import group
from gputop.stacks.lines import MEANINGS, TextLine, text_lines
from gputop.stacks.nccl import NcclReport
from gputop.stream.reach.hosts import fold as fold_hosts
from gputop.system.errors import UserError
from gputop.system.output import create
from gputop.system.text import clean, counted, file_size
from gputop.tui.box import Box
from gputop.tui.draw import Line, time_of_day
from gputop.tui.feed import Context

STACKS_IN_S = 0.7  # s from the question until all nodes take the stacks: the question must have reached them
STACKS_S = 15.0  # s after which nodes without an answer are named


class Saving:
    """`R`: a file for each node, in a new folder."""

    def __init__(self, folder: str, hosts: Sequence[str], say: Callable[[str], None]) -> None:
        self.folder = folder
        self._left = set(hosts)
        self._say = say
        self._files: dict[str, int] = {}
        self._bytes = 0
        self._problems: dict[str, str] = {}
        self._saved = 0

    def take(self, host: str, answer: NodeAnswer) -> None:
        """Write a piece of a node's recording."""
        try:
            if answer.error:
                raise UserError(answer.error)
            if host not in self._files:
                self._files[host] = create(os.path.join(self.folder, f"{file_name(host)}.gputop"))
            os.write(self._files[host], answer.data)
            self._bytes += len(answer.data)
            if answer.more:
                return
            self._saved += 1
        except (OSError, UserError) as error:
            self._problems[host] = getattr(error, "strerror", None) or str(error)
        if (fd := self._files.pop(host, None)) is not None:
            os.close(fd)
        self._left.discard(host)
        self._say(self.words)

    @property
    def words(self) -> str:
        """Result of the saving so far, in words."""
        waits = f"; {len(self._left)} still write" if self._left else ""
        failed = f"; {clean(next(iter(self._problems)), 40)}: {next(iter(self._problems.values()))}" if self._problems else ""
        return f"saved {counted(self._saved, 'node')} ({file_size(self._bytes)}) in {self.folder}{waits}{failed}"


def file_name(host: str) -> str:
    """A host's name as one of a file: ``ana@node7`` and ``[fe80::1]:22`` may be one, ``../x`` may not."""
    return "".join(char if char.isalnum() or char in "._-@" else "_" for char in host).lstrip(".") or "node"


class FleetStacks(Box):
    """`s`: the stacks of all ranks of a job, taken in the same second, equal ones together."""

    TITLE = "stacks"
    NAME = ("s", "stacks")
    REFRESH_S = 0.5
    TAKES_ALL = True
    BINDINGS = [Binding("s", "dismiss", "close", show=False)]

    def __init__(self, context: Context, job: Job, sights: Sequence[Sight], questions: Questions) -> None:
        super().__init__(context)
        self._job = job
        self._skews = {sight.host: sight.skew_s for sight in sights}
        self._questions = questions
        self._members = {(member.host, member.rank.pid): number for number, member in enumerate(job.members, 1)}
        self._stacks: list[Stack] = []
        self._left = set(job.hosts)
        self._problems: dict[str, str] = {}
        self._asked_s = time.monotonic()
        self._at = 0.0
        self._shown: list[TextLine] = []
        self._said: list[TextLine] = []  # by NCCL

    def on_mount(self) -> None:
        """Ask all nodes for the same moment, each by its own clock; and one node for NCCL's report on all ranks."""
        if self._job.size > 1:
            ask_nccl(self._questions, self._job, self._take_report)
        self._at = time.time() + STACKS_IN_S
        for host in self._job.hosts:
            pids = [member.rank.pid for member in self._job.members if member.host == host]
            at_unix_s = self._at - self._skews.get(host, 0.0)
            self._questions.ask(host, "stacks", self._take, pids=pids, at_unix_s=at_unix_s)

    def _take(self, host: str, answer: NodeAnswer) -> None:
        self._left.discard(host)
        try:
            if answer.error:
                raise ValueError(answer.error)
            self._stacks += [
                _renamed(stack, number)
                for stack in read_stacks(answer.data)
                if (number := self._members.get((host, stack.pid))) is not None
            ]
        except ValueError as error:
            self._problems[host] = clean(str(error), 120)
        self._shown = text_lines(group(self._stacks, roles_of(self._job.members)))

    def _take_report(self, report: NcclReport) -> None:
        self._said = nccl.told(report)

    def lines(self) -> Sequence[Line]:
        out: list[Line] = [[(f"{clean(host)}: {why}", "crit")] for host, why in self._problems.items()]
        if self._left and time.monotonic() - self._asked_s > STACKS_S:
            out.append([(f"no stacks from {fold_hosts(sorted(self._left))}", "crit")])
        return [*out, *([(line.text, MEANINGS[line.kind])] for line in [*self._said, *self._shown])]

    @property
    def first_line(self) -> str:
        waits = f", {len(self._left)} nodes have still to answer" if self._left else ""
        return f"stacks of {len(self._job.members)} ranks of {self._job.name} at {time_of_day(self._at)}{waits}   (↑↓ scroll, Esc closes)"


def _renamed(stack: Stack, number: int) -> Stack:
    """The stack under a pid of its own: processes on two nodes may have the same."""
    return replace(stack, pid=number, tid=number if stack.tid == stack.pid else (number << 32) + stack.tid)


def roles_of(members: Sequence[JobRank]) -> dict[int, Role]:
    """Number from 1 on -> role of a rank, over all nodes."""
    return {
        number: Role("trainer", number, member.rank.rank, label=f"rank {member.number} ({member.host})")
        for number, member in enumerate(members, 1)
    }


class FleetWhy(Box):
    """`e`: all facts about the chosen job."""

    TITLE = "why   (↑↓ scroll, Esc closes)"
    NAME = ("e", "why")
    BINDINGS = [Binding("e", "dismiss", "close", show=False)]

    def __init__(self, context: Context, look: Callable[[], list[Line]]) -> None:
        """``look`` gives the lines as they are now."""
        super().__init__(context)
        self._look = look

    def lines(self) -> Sequence[Line]:
        return self._look() or [[("no training on these nodes", "")]]
