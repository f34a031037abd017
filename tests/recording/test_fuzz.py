"""Whatever a stream is made of, it ends with frames or a line: no other error, bounded memory, bounded time (see `fuzz`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.recording import fuzz

INPUTS = int(os.environ.get("GPUTOP_FUZZ", "200"))
"""Of each part, a second or two on two CPUs; ask for more after a change of the format: GPUTOP_FUZZ=100000."""
PARTS = 5  # the first belongs to `make test`, the others to `make soak`
FIRST = int(os.environ.get("GPUTOP_FUZZ_FROM", "0"))


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.soak if part else ()) for part in range(PARTS)])
def test_changed_streams_are_read_or_refused_in_a_line_within_bounds(part: int) -> None:
    first = FIRST + part * INPUTS
    found = fuzz.campaign([fuzz.numbered(number) for number in range(first, first + INPUTS)])
    assert not found, f"{len(found)} of {INPUTS} went wrong:\n" + "\n".join(found[:5])


def test_what_was_not_changed_is_read_by_all() -> None:
    inputs = [
        fuzz.Input(f"seed{i}-{drive.__name__}", lambda seed=seed: seed, drive)  # type: ignore[misc]
        for i, seed in enumerate(fuzz.seeds()) for drive in fuzz.DRIVERS
    ]  # fmt: skip
    assert fuzz.campaign(inputs) == []


def test_the_fuzzer_sees_what_it_looks_for() -> None:
    """Too much memory, too long, another error, a death."""

    def hungry(_: str) -> None:
        bytearray(400 << 20)[::4096] = bytes(100 << 10)

    def greedy(_: str) -> None:
        bytearray(2 << 30)

    def endless(_: str) -> None:
        while True:
            pass

    def dead(_: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def sound(_: str) -> None:
        pass

    def found(*drives: Callable[[str], None], most_s: int = fuzz.MOST_S) -> list[str]:
        return fuzz.campaign([fuzz.Input(drive.__name__, lambda: b"", drive) for drive in drives], most_s=most_s)

    told = found(hungry, greedy, dead, sound)  # memory takes CPU time, too: of a virtual machine much more than a second now and then
    assert [line.split()[0] for line in told] == ["hungry", "greedy", "dead"]
    assert ["MiB" in told[0], "MemoryError" in told[1], "SIGKILL" in told[2]] == [True] * 3
    (late,) = found(endless, most_s=1)
    assert late.startswith("endless ")
    assert "SIGPROF" in late
