"""`gputop --once --json`: one object, made once, of the whole look."""

from __future__ import annotations

import argparse
import json

import pytest

from gputop.commands import once
from gputop.model.frame import Frame, Header, ProcInfo, ProcSample
from gputop.stream import snapshot

TICK_NS = 10**8
ARGS = argparse.Namespace(once=True, json=True, line=None, interval=0.1, pid=None, user=None, host=None)


def look(ticks: int) -> list[Header | Frame]:
    """A process that takes half a CPU in each tick but the first, in which it takes a whole one."""
    used = [0, *(TICK_NS * (i + 1) // 2 for i in range(1, ticks))]
    procs = [ProcSample(7, 1, i * TICK_NS, "S", ns, 0, 0, 1) for i, ns in enumerate(used)]
    frames = [Frame(i, i * TICK_NS, key=not i, procs=[proc], infos=[ProcInfo(7, 1)]) for i, proc in enumerate(procs)]
    return [Header(), *frames]


def test_a_look_is_taken_once_and_over_all_of_it(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    moments, take = [], snapshot.take

    def counted(older, newer, *rest):  # type: ignore[no-untyped-def]
        moments.append((older.seq, newer.seq))
        return take(older, newer, *rest)

    monkeypatch.setattr(once, "look", lambda _: iter(look(5)))
    monkeypatch.setattr(snapshot, "take", counted)
    assert once.run(ARGS) == 0
    (line,) = capsysbinary.readouterr().out.splitlines()
    assert [proc["cpu_pct"] for proc in json.loads(line)["procs"]] == [62.5]
    assert moments == [(0, 4)]


@pytest.mark.parametrize(("gap", "frames"), [(0.5, 3), (1.0, 2), (1.5, 2)])
def test_a_look_from_afar_lasts_an_interval_or_more(gap: float, frames: int) -> None:
    """A collector that we know nothing of keeps its beat, and its first frame stands anywhere between two."""
    stream = [Header(), *(Frame(i, int((gap + i - 1) * TICK_NS) if i else 0) for i in range(9))]
    seen = [item for item in once._first(iter(stream), TICK_NS) if isinstance(item, Frame)]
    assert len(seen) == frames
    assert seen[-1].t_ns >= TICK_NS
