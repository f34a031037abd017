"""Blocks that lie in a file instead of in memory: they come back as they were, and nothing is lost where there is no such file."""

from __future__ import annotations

import gc
import os
from collections import deque
from pathlib import Path

import pytest

from gputop.model.frame import SECOND_NS
from gputop.recording.ring import Ring
from gputop.recording.shelf import Shelf, Shelved
from tests.recording.made import HEADER, Session
from tests.wait import until


def _nameless(folder: Path) -> list[str]:
    """Open files that had their place in ``folder`` and have no name."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)) and target.endswith("(deleted)"):
            found.append(target)
    return found


def test_what_is_put_down_leaves_memory_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    shelf, contents = Shelf(), [bytes([i]) * (1000 + i) for i in range(50)]
    blocks = [shelf.put(content) for content in contents]
    until(lambda: all(block.data is None for block in blocks))
    assert [block.read() for block in blocks] == contents
    assert [block.size for block in blocks] == [len(content) for content in contents]
    assert len(_nameless(tmp_path)) == 1
    assert not list(tmp_path.iterdir())


def test_the_file_ends_with_the_last_who_holds_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    blocks = [Shelf().put(b"kept")]
    until(lambda: blocks[0].data is None)
    gc.collect()
    assert blocks[0].read() == b"kept"
    assert _nameless(tmp_path)
    blocks.clear()
    until(lambda: not _nameless(tmp_path))


def test_a_shelf_from_which_as_much_goes_as_comes_has_one_file_that_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    shelf, held, most = Shelf(), deque[tuple[bytes, Shelved]](), 0
    for i in range(400):
        content = bytes([i % 251]) * (1000 + 37 * (i % 11))
        block = Shelved(content)
        shelf.write(block)
        held.append((content, block))
        del block
        if len(held) > 20:
            held.popleft()
        if i == 100:
            most = file_bytes(tmp_path)
        assert all(block.read() == content for content, block in held), "nothing is written over that somebody holds"
    assert file_bytes(tmp_path) <= 1.5 * most
    assert len(_nameless(tmp_path)) == 1


def file_bytes(folder: Path) -> int:
    """Of the file that has no name."""
    return next(
        os.stat(f"/proc/self/fd/{fd}").st_size
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder))
    )


def test_the_last_ten_minutes_take_one_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    ring = Ring(HEADER, window_ns=20 * SECOND_NS)
    for frame in Session(procs=3).frames(600, key_every=20):
        ring.add(frame)
    blocks = ring.sealed()
    until(lambda: all(block.data is None for block in blocks))
    assert len(_nameless(tmp_path)) == 1


@pytest.mark.parametrize("problem", ["nowhere to write", "no room", "half of it"])
def test_without_a_file_it_stays_in_memory(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    def half(_fd: int, data: bytes, _offset: int) -> int:
        return len(data) // 2

    if problem == "nowhere to write":
        monkeypatch.setattr("tempfile.TemporaryFile", full)
    else:
        monkeypatch.setattr("os.pwrite", full if problem == "no room" else half)
    shelf, block = Shelf(), Shelved(b"content")
    if problem == "half of it":
        shelf.write(block)
    else:
        with pytest.raises(OSError, match="No space"):
            shelf.write(block)
    assert block.read() == b"content"
    monkeypatch.undo()
    shelf.write(block)
    assert block.data is None
    assert block.read() == b"content"


def test_a_disk_that_gives_nothing_back_costs_that_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ring, frames = Ring(HEADER), list(Session(procs=3).frames(300))
    for frame in frames:
        ring.add(frame)
    blocks = ring.sealed()
    until(lambda: all(block.data is None for block in blocks))
    assert list(ring.frames(0, ring.end_ns + 1)) == frames
    pread, lost = os.pread, blocks[1]

    def failing(fd: int, size: int, offset: int) -> bytes:
        if size == lost.size:
            raise OSError(5, "Input/output error")
        return pread(fd, size, offset)

    monkeypatch.setattr("os.pread", failing)
    left = list(ring.frames(0, ring.end_ns + 1))
    assert 0 < len(left) < len(frames)
    assert left == [frame for frame in frames if frame in left]
