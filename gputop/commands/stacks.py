"""Show Python and kernel stacks of stalled processes, and what each thread waits for.

Without PID: the trainers on this machine and their stalled workers. Processes are not paused, except with --native (C and C++ frames,
about 20 ms each). --duration samples main threads and splits their time by line; as root it also counts their CUDA synchronize and
memcpy calls by the Python line that made them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputop.commands.options import WRITER, acting_as_user, duration, no_process, process_id, runs
from gputop.system.colour import width_of
from gputop.system.console import notify, show, write
from gputop.system.errors import UserError
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.model.roles import Role
    from gputop.stacks.document import OffCpuWaits, SampledLines, Stacks
    from gputop.stacks.frames import Weighted
    from gputop.stacks.lines import TextLine

EXAMPLES = """examples:
  gputop stacks                                   everything stalled now
  sudo "$(command -v gputop)" stacks 3821         another user's process, with its kernel stack
  gputop stacks 3821 --duration 10                where its main thread's time goes, by line (as root: in which CUDA calls)
  sudo "$(command -v gputop)" stacks --off-cpu    where trainers and workers wait in the kernel, for 5 s
  gputop stacks 3821 --duration 30 --svg a.svg    a flame graph, for a browser
  gputop stacks --speedscope -o stacks.json       for https://www.speedscope.app"""

LEAST_WIDTH, MOST_WIDTH = 40, 200  # columns of sentences; those of a pipe depend on no terminal
LOOK_TICKS, LOOK_INTERVAL_NS = 8, 100_000_000  # processes are watched for 0.7 s to find the stalled ones


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pids", type=process_id, nargs="*", metavar="PID", help="processes; a trainer without its workers")
    parser.add_argument("--native", action="store_true", help="C and C++ frames too: pauses each process for about 20 ms")
    parser.add_argument("--duration", type=duration("1s", "10m"), metavar="TIME", help="sample main threads so long (1s to 10m), by line")
    parser.add_argument("--off-cpu", action="store_true", help="with eBPF: kernel stacks of waiting threads, for --duration (5 s)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object: stacks, and groups of equal ones")
    form.add_argument("--folded", action="store_true", help="a line a stack, for flame-graph tools")
    form.add_argument("--svg", nargs="?", const="", metavar="FILE", help="a flame graph in this new file; without FILE in a new one here")
    form.add_argument("--speedscope", action="store_true", help="a speedscope document")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this new file instead of standard output")


def run(args: argparse.Namespace) -> int:
    """Print stacks or samples. Returns 1 if no stack could be read."""
    if args.native and (args.duration or args.off_cpu):
        raise UserError("--native is for one set of stacks: take --duration and --off-cpu without it", code=2)
    if args.svg is not None:
        _name_svg(args)
    if args.output not in (None, "-"):
        from gputop.system.output import check_new

        check_new(args.output)
    roles: dict[int, Role] = {}
    waits: dict[int, str] = {}
    pids = _running(list(dict.fromkeys(args.pids)))
    if not pids:
        pids, roles, waits = _look()
    if args.off_cpu:
        return _watch(args, pids, roles)
    if args.duration:
        return _sample(args, [pid for pid in pids if pid not in roles or roles[pid].kind == "trainer"], roles)
    return _take(args, pids, roles, waits)


def _name_svg(args: argparse.Namespace) -> None:
    """Set the file of the flame graph. A number behind ``--svg`` is a process: nobody calls a picture so."""
    from time import strftime

    from gputop.system.output import unused

    if args.svg.isascii() and args.svg.isdigit():
        args.pids.append(process_id(args.svg))
        args.svg = ""
    if args.svg and args.output:
        raise UserError("--svg FILE and -o name two files: give one of them", code=2)
    args.output = args.svg or args.output or unused(f"gputop-stacks-{strftime('%Y%m%d-%H%M%S')}", ".svg")


def _running(pids: list[int]) -> list[int]:
    """The pids that run; a line on standard error names the others. Raises UserError if none runs."""
    known = [pid for pid in pids if runs(pid)]
    gone = [no_process(pid) for pid in pids if pid not in known]
    if gone and not known:
        raise UserError(" or ".join([gone[0], *(str(pid) for pid in pids[1:])]))
    for text in gone:
        notify(text)
    return known


def _take(args: argparse.Namespace, pids: list[int], roles: dict[int, Role], waits: dict[int, str]) -> int:
    from gputop.stacks import nccl
    from gputop.stacks.capture import capture
    from gputop.stacks.document import stacks
    from gputop.stacks.lines import TextLine, summary, text_lines, weigh_stacks
    from gputop.traces import pipes

    taken = capture(pids, waits=waits, native=args.native)
    said = nccl.ask(pids)
    found = stacks(taken, roles, said)
    lines = [TextLine("title", summary(taken)), TextLine("blank", ""), *nccl.told(said), *pipes.text_lines(pids), *text_lines(found.groups)]
    _write(args, lines, found, weigh_stacks(taken.stacks), "stack")
    unread = [stack for stack in taken.stacks if not (stack.python or stack.kernel)]
    if len(unread) == len(taken.stacks) and not args.json:
        notify(f"no stack could be read: {unread[0].error}")
    return int(len(unread) == len(taken.stacks))


def _look() -> tuple[list[int], dict[int, Role], dict[int, str]]:
    """Watch for a moment; returns stalled pids, roles, and what each process waits for."""
    import threading

    from gputop.collector.beat import Collector, make_header
    from gputop.model.board import Board
    from gputop.model.frame import Frame
    from gputop.sources import Settings
    from gputop.stream.following import Following
    from gputop.stream.stalled import stalled_pids, waits

    settings = Settings(interval_ns=LOOK_INTERVAL_NS, ebpf=False)
    following = Following(Board(header=make_header(settings)))

    class Fold:
        def send(self, frame: Frame) -> bool:
            following.take(frame)
            return True

    # In a thread of its own, for the collector raises the priority of its thread.
    watcher = threading.Thread(target=Collector(settings, Fold()).run, args=(LOOK_TICKS,))
    watcher.start()
    watcher.join()
    board, engine = following.board, following.engine
    engine.feed(board)
    pids = stalled_pids(engine.roles, engine.states)
    if not pids:
        raise UserError("no trainer runs here: name a process, as in: gputop stacks 3821")
    return pids, dict(engine.roles), waits(board, engine.roles, engine.states, engine.verdict)


def _sample(args: argparse.Namespace, pids: list[int], roles: dict[int, Role]) -> int:
    from gputop.stacks.document import sampled_lines
    from gputop.stacks.lines import TextLine, main_thread_lines
    from gputop.stacks.sampling import watch_main_threads

    found, failed = watch_main_threads(pids, args.duration)
    for pid, reason in failed.items():
        notify(f"process {pid}: {reason}")
    names = _names(pids, roles)
    if found or args.json or args.folded or args.speedscope or args.svg is not None:
        weighted = [((names[one.pid], *frames), count) for one in found for frames, count in one.stacks]
        lines = [line for one in found for line in (TextLine("blank", ""), *main_thread_lines(one, names[one.pid]))][1:]
        _write(args, lines, sampled_lines(found, failed), weighted, "sample")
    return 0 if found else 1


def _names(pids: list[int], roles: dict[int, Role]) -> dict[int, str]:
    return {pid: roles[pid].label if pid in roles else _called(pid) or f"process {pid}" for pid in pids}


def _called(pid: int) -> str:
    """The process's name on the screen, empty if it has ended."""
    from gputop.model.frame import ProcInfo
    from gputop.model.roles import program_name
    from gputop.sources import parse
    from gputop.sources.files import read_once

    comm, words = (read_once(f"/proc/{pid}/{name}", parse.CMDLINE_BYTES) or b"" for name in ("comm", "cmdline"))
    return program_name(ProcInfo(pid, 0, comm=parse.text(comm).strip(), cmdline=parse.cmdline(words))) if comm else ""


def _watch(args: argparse.Namespace, pids: list[int], roles: dict[int, Role]) -> int:
    from gputop.stacks import on_demand
    from gputop.stacks.document import SCHEMA, OffCpuWaits
    from gputop.stacks.lines import offcpu_lines
    from gputop.system.errors import Unavailable

    try:
        found = on_demand.watch_off_cpu(pids, args.duration or on_demand.OFF_CPU_S)
    except Unavailable as error:
        raise UserError(f"{error.reason}; {error.remedy}" if error.remedy else error.reason) from None
    if args.svg is not None and not found.stacks:
        raise UserError("no thread waited in this time: there is nothing to draw")
    lines = offcpu_lines(found, _names(pids, roles))
    _write(args, lines, OffCpuWaits(SCHEMA, found), on_demand.weigh_off_cpu(found.stacks), "nanoseconds")
    return 0


def _write(
    args: argparse.Namespace, lines: Sequence[TextLine], answer: Stacks | SampledLines | OffCpuWaits, weighted: Sequence[Weighted],
    unit: str,
) -> None:  # fmt: skip
    """Write what was found as the flags ask: text, JSON, or stacks with weights of this unit: ``stack``, ``sample``, ``nanoseconds``."""
    import msgspec

    if args.svg is not None and not weighted:
        return  # why there are none has been printed
    from gputop.stacks.flame_svg import to_svg
    from gputop.stacks.lines import coloured, plain, save, to_folded, to_speedscope

    text = ""
    if args.svg is not None:
        text = to_svg(weighted, "gputop stacks", unit)
    elif args.folded:
        text = to_folded(weighted)
    elif args.json or args.speedscope:
        weights = unit if unit == "nanoseconds" else "none"
        text = msgspec.json.encode(answer if args.json else to_speedscope(weighted, "gputop stacks", weights)).decode() + "\n"
    if args.output in (None, "-"):
        if text:
            write(text.encode(errors="replace"))
        else:
            show(coloured(lines, width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, MOST_WIDTH)))
    else:
        with acting_as_user(*WRITER):
            save(args.output, text or plain(lines))
        if args.svg is not None:
            write(f"written to {clean(args.output)}: open it in a browser\n")
