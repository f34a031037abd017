"""What would only take room is not kept, and not loaded."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from gputop.model.board import Board
from gputop.model.frame import Frame, Header, Preempt, Probes, ProcInfo, ProcSample
from gputop.recording.chunks import Decoder
from gputop.recording.format import pack_frames, pack_header

SCREEN = "gputop.cli, gputop.commands.live, gputop.stream.child, gputop.stream.session, gputop.tui.app, gputop.stacks.capture"
COLLECTOR = (
    "gputop.commands.collect, gputop.collector.beat, gputop.sources.procfs, gputop.sources.nvml, gputop.sources.marks, "
    "gputop.sources.ebpf.source, gputop.recording.pipe"
)
def test_empty_lists_and_what_a_parent_has_too_are_kept_once() -> None:
    board = Board()
    infos = [ProcInfo(7, 1, cmdline=["python", "train.py"]), ProcInfo(8, 1, ppid=7, cmdline=["python", "train.py"]), ProcInfo(9, 1)]
    board.fold(Frame(0, 1, key=True, infos=infos))
    kept = board.infos
    assert kept[8].cmdline is kept[7].cmdline
    assert kept[7].threads is kept[8].threads is kept[9].threads == []
    assert kept[7].env is kept[9].env == {}
    assert kept[9] == infos[2]


def _key(seq: int, ns: int) -> Frame:
    infos = [ProcInfo(7, 1, comm="python", cmdline=["python", "train.py"]), ProcInfo(8, 1, comm=f"worker {seq}")]
    procs = [ProcSample(7, 1, 5, "S", 1000, 2000, 3000, 1), ProcSample(8, 1, ns, "R", ns, 0, 0, 1)]
    return Frame(seq, ns, key=True, infos=infos, procs=procs, probes=Probes(ns, preempts=[Preempt(7, 8, 8, 10_000, 3)]))


def test_a_key_frame_replaces_only_what_has_changed() -> None:
    board = Board()
    board.fold(_key(0, 1_000_000))
    before = board.snapshot()
    board.fold(_key(1, 2_000_000))
    assert board.infos[7] is before.infos[7]
    assert board.procs[7] is before.procs[7]
    assert board.preempts[7, 8] is before.preempts[7, 8]
    assert board.infos[8].comm == "worker 1"
    assert board.procs[8].utime_ns == 2_000_000


def test_a_key_frame_still_forgets_who_is_not_in_it() -> None:
    board = Board()
    board.fold(_key(0, 1_000_000))
    board.fold(Frame(1, 2_000_000, key=True))
    assert (board.infos, board.procs, board.preempts) == ({}, {}, {})


def test_what_a_key_frame_of_a_stream_tells_again_is_decoded_to_what_was_there() -> None:
    """A second thousand of processes, for a moment, leaves holes of 2 MB in the memory."""
    decoder, sent = Decoder(), [_key(0, 1_000_000), _key(1, 2_000_000)]
    sent[1].infos += [ProcInfo(9, 1, ppid=7, cmdline=["python", "train.py"]), ProcInfo(10, 1, ppid=9, cmdline=["python", "train.py"])]
    items = decoder.feed(pack_header(Header(t_ns=1)) + b"".join(pack_frames([frame]) for frame in sent))
    first, second = (one for one in items if isinstance(one, Frame))
    assert (second.infos, second.procs, second.probes, second.key) == (sent[1].infos, sent[1].procs, sent[1].probes, True)
    assert second.infos[0] is first.infos[0]
    assert second.procs[0] is first.procs[0]
    assert second.infos[3].cmdline is second.infos[2].cmdline is second.infos[0].cmdline
    board = Board()
    for frame in (first, second):
        board.fold(frame)
    assert [board.infos[pid] for pid in (7, 8, 9, 10)] == second.infos
    assert all(board.infos[one.pid] is one for one in second.infos), "nobody makes another copy"


def test_who_is_in_no_key_frame_is_forgotten_by_the_decoder_too() -> None:
    decoder, sent = Decoder(), [_key(0, 1_000_000), Frame(1, 2_000_000, key=True), _key(2, 3_000_000)]
    items = decoder.feed(pack_header(Header(t_ns=1)) + b"".join(pack_frames([frame]) for frame in sent))
    first, _, last = (one for one in items if isinstance(one, Frame))
    assert last.infos[0] == first.infos[0]
    assert last.infos[0] is not first.infos[0]


HOLES = """
import resource
from gputop.system.program import return_pages, return_freed_memory

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

return_freed_memory()
blocks = [b"x" * i for i in range(32768, 33768)]
kept, before = blocks[::10], held()
del blocks
return_pages()
print(before - held())
"""


def test_pages_between_what_is_kept_are_given_back() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library is not glibc")
    given_back = int(subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True).stdout)
    assert given_back > 20 << 20
