"""`gputop record --host LIST -o FOLDER`: a recording of each host. One that does not answer costs no other; it goes on when it does."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import threading
import time
from typing import TYPE_CHECKING

from gputop.commands.options import RECORDER, leave_root, sampling_argv
from gputop.fleet.link import CONNECTING, UP, NodeState
from gputop.fleet.links import Links
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, Mark
from gputop.recording.keyframe import key_frame
from gputop.recording.lasting import Lasting
from gputop.recording.writer import NO_LIMIT, Rotation
from gputop.system.console import notify
from gputop.system.ending import Ending
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection, return_freed_memory
from gputop.system.text import clean, counted, file_size

if TYPE_CHECKING:
    from gputop.stream.reach import Target

LOOK_S = 0.5  # s between looks at the links
GAP_TICKS = 5  # frames missing in a row, from which on a marker has the reason


class HostFile:
    """One host's recording. `take` is called in the thread of the links."""

    def __init__(self, host: str, path: str, max_bytes: int, max_files: int) -> None:
        self.host, self.path = host, path
        self.problem = ""  # why there is no recording
        self._max_bytes, self._max_files = max_bytes, max_files
        self._file: Lasting | None = None
        self._board = Board()
        self._last_ns = 0
        self._is_resumed = False  # the link was restarted, and no frame has come since
        self._lock = threading.Lock()
        self._is_closed = False  # a node that sends faster than is written still has some on the way

    def take(self, item: Header | Frame) -> None:
        """The next of its stream; after a gap it begins with a key frame, some of what follows is known already."""
        with self._lock:
            try:
                if self._is_closed:
                    return
                if isinstance(item, Header):
                    self._take_header(item)
                elif self._file is not None:
                    self._take_frame(item, self._file)
            except UserError as error:
                self._file, self.problem = None, str(error)

    def close(self) -> int:
        """Close the file and return its size in bytes; nothing is taken any more."""
        with self._lock:
            self._is_closed = True
            if self._file is None:
                return 0
            self._file.close()
            return os.path.getsize(self.path)

    def _take_header(self, header: Header) -> None:
        if header.boot_id != self._board.header.boot_id:
            self._last_ns = 0
        self._board, self._is_resumed = self._board.with_header(header), self._last_ns > 0
        if self._file is not None:
            self._file.restate(header)
        elif not self.problem:
            self._file = Lasting(Rotation(self.path, header, self._max_bytes, self._max_files), notify)

    def _take_frame(self, frame: Frame, file: Lasting) -> None:
        self._board.fold(frame)
        if frame.t_ns <= self._last_ns:
            return
        if self._is_resumed:
            missing_ns, frame = frame.t_ns - self._last_ns, key_frame(self._board, frame)
            if missing_ns > GAP_TICKS * self._board.header.interval_ns:
                frame.marks = [Mark.of_gap(self._last_ns, frame.t_ns, "the link to it was lost"), *frame.marks]
            self._is_resumed = False
        self._last_ns = frame.t_ns
        file.add(frame, self._board)


def run(args: argparse.Namespace, chosen: list[Target]) -> int:
    """Record until a signal, or for --duration."""
    if args.command:
        raise UserError("a command runs with one --host or none: start it apart", code=2)
    if args.keep:
        raise UserError("--keep is for one host: record each by its own gputop record --keep", code=2)
    if args.alert or args.alert_on:
        raise UserError("--alert is for one host: run gputop watch --alert on each", code=2)
    if args.output is None:
        raise UserError("name the folder: -o run, for a file a host", code=2)
    leave_root(*RECORDER)  # ssh uses the user's keys and known hosts; the files are the user's
    files = _files(args, chosen)
    return_freed_memory()
    calm_garbage_collection()
    ending = Ending()
    ending.listen()
    links = Links(chosen, [word for word in sampling_argv(args) if word != "--sudo"])
    told: dict[str, str] = {}
    try:
        for file in files:
            links.tap(file.host, file.take)
        end_s = time.monotonic() + (args.duration or float("inf"))
        while not ending.asked and time.monotonic() < end_s:
            for state in links.poll().values():
                _tell(state, told)
            time.sleep(LOOK_S)
    finally:
        links.close()
        sizes = [size for file in files if (size := file.close())]
    for file in files:
        if file.problem:
            notify(f"{file.host}: {clean(file.problem)}")
    if not sizes:
        raise UserError("nothing was recorded: no host has answered")
    shown = f": gputop replay {shlex.quote(args.output)}" if sizes else ""
    notify(f"recorded {counted(len(sizes), 'host')} of {len(files)} to {clean(args.output)}/ ({file_size(sum(sizes))}){shown}")
    return 0


def _files(args: argparse.Namespace, chosen: list[Target]) -> list[HostFile]:
    allowed, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = min(args.max_size or NO_LIMIT, NO_LIMIT if allowed == resource.RLIM_INFINITY else allowed)
    try:
        os.makedirs(args.output, mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {clean(args.output)}: {error.strerror}") from None
    found: dict[str, HostFile] = {}
    for target in chosen:
        path = os.path.join(args.output, re.sub(r"[^A-Za-z0-9._-]", "_", target.host) + ".gputop")
        if path in found or os.path.lexists(path):
            raise UserError(f"{clean(path)} is there already: choose another folder")
        found[path] = HostFile(target.host, path, most, args.max_files)
    return list(found.values())


def _tell(state: NodeState, told: dict[str, str]) -> None:
    """A line as a host stops answering, and one as it goes on."""
    before = told.get(state.host, CONNECTING)
    if state.state == before:
        return
    told[state.host] = state.state
    if state.state == UP and before != CONNECTING:
        notify(f"{state.host} answers again")
    elif state.state not in (UP, CONNECTING):
        notify(f"{state.host}: {clean(state.reason)}; it is tried again")
