"""What a text means on a recording: one answer for every flag and for the screen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from msgspec import Struct

from gputop.model.frame import SECOND_NS, Header, Mark
from gputop.stream.moment import moment, moment_within
from gputop.system.errors import UserError

BOOTED_NS = 5_000 * SECOND_NS


class Made(Struct):
    """All that is known of a recording."""

    header: Header
    start_ns: int
    end_ns: int
    marks: list[Mark] = []


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clocks go forward on March 29 of 2026 at 2:00, back on October 25 at 3:00."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def made(first: str, seconds: float, **marks_s: float) -> Made:
    """A recording from ``first`` on (with its offset from UTC), with markers so many seconds later."""
    unix_ns = round(datetime.fromisoformat(first).timestamp() * 1e6) * 1000
    at = {text: BOOTED_NS + round(after * SECOND_NS) for text, after in marks_s.items()}
    end_ns = BOOTED_NS + round(seconds * SECOND_NS)
    # The header is older than the first frame.
    header = Header(t_ns=BOOTED_NS - SECOND_NS, unix_ns=unix_ns - SECOND_NS)
    return Made(header, BOOTED_NS, end_ns, [Mark(t_ns, text.rstrip("_")) for text, t_ns in at.items()])


def seconds_of(t_ns: int) -> float:
    """After the recording's start."""
    return (t_ns - BOOTED_NS) / SECOND_NS


MIDNIGHT = made("2026-11-20T23:59:10+01:00", 660, epoch=90, epoch_=300)


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("90", 90), ("+90", 90), ("90s", 90), ("+90s", 90), ("1.5m", 90), ("+5m", 300), (" .5 ", 0.5), ("0", 0),
        ("50%", 330), ("0%", 0), ("100%", 660), ("23:59:30", 20), ("23:59:30.5", 20.5), ("00:05", 350), ("0:05:09", 359),
        ("2026-11-21 0:05:09", 359), ("2026-11-21T00:05:09", 359), ("epoch", 90),
    ],
)  # fmt: skip
def test_moments_in_words(text: str, after_s: float) -> None:
    """Over midnight."""
    assert seconds_of(moment(text, MIDNIGHT)) == pytest.approx(after_s)
    assert moment_within(text, MIDNIGHT) == moment(text, MIDNIGHT)


@pytest.mark.parametrize(("text", "after_s"), [("23:59", -10), ("23:59:09", -1), ("00:20", 1250), ("2h", 7200), ("101%", 666.6)])
def test_what_lies_outside_is_a_bound_but_no_place_to_stand(text: str, after_s: float) -> None:
    assert seconds_of(moment(text, MIDNIGHT)) == pytest.approx(after_s)
    with pytest.raises(UserError, match=r"outside the recording \(2026-11-20 23:59:10 to 2026-11-21 00:10:10\)$") as error:
        moment_within(text, MIDNIGHT)
    assert error.value.code == 2


@pytest.mark.parametrize(
    "text",
    [
        "noon", "", "+", "-5", "nan", "1e9", pytest.param("9" * 400, id="long"), "999999%", "25:00", "24:00", "03:60", "03:12:60",
        "9999-99-99 00:00", "0001-01-01 00:00", "٣", "epoch 3", "a\nb\x1b[2J",
    ],
)  # fmt: skip
def test_what_is_no_time_is_said_in_a_line(text: str) -> None:
    with pytest.raises(UserError, match=r"is no time: write|outside the recording") as error:
        moment_within(text, MIDNIGHT)
    assert str(error.value).isprintable()
    assert error.value.code == 2


def test_the_next_marker_of_its_name_or_the_first() -> None:
    after = [moment("epoch", MIDNIGHT, BOOTED_NS + s * SECOND_NS) for s in (0, 90, 300)]
    assert [seconds_of(t_ns) for t_ns in after] == [90, 300, 90]


def test_the_second_in_which_it_began_is_inside() -> None:
    recording = made("2026-11-20T14:03:07.600+01:00", 60)
    assert moment_within("14:03:07", recording) == BOOTED_NS
    assert seconds_of(moment_within("14:03:08", recording)) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("first", "text", "after_s"),
    [
        ("2026-03-29T00:30:00+01:00", "04:00", 2.5 * 3600),  # forward at 2:00
        ("2026-03-28T23:30:00+01:00", "04:00", 3.5 * 3600),
        ("2026-10-24T23:30:00+02:00", "04:00", 5.5 * 3600),  # back at 3:00
        ("2026-10-25T00:30:00+02:00", "04:00", 4.5 * 3600),
        ("2026-10-25T00:30:00+02:00", "02:30", 2 * 3600),  # the first of two
        ("2026-10-25T02:10:00+01:00", "02:30", 20 * 60),  # the second, where the first is over
        ("2026-10-25T02:10:00+01:00", "2026-10-25 02:30", 20 * 60),
    ],
)
def test_where_clocks_change_a_time_of_day_is_what_they_show(first: str, text: str, after_s: float) -> None:
    assert seconds_of(moment_within(text, made(first, 9 * 3600))) == after_s


@pytest.mark.parametrize(("text", "after_s"), [("epoch#1", 90), ("epoch#2", 300), ("epoch #2", 300)])
def test_one_of_several_markers_of_a_text_is_named_by_its_number(text: str, after_s: float) -> None:
    assert seconds_of(moment(text, MIDNIGHT)) == after_s
    assert seconds_of(moment(text, MIDNIGHT, after_ns=MIDNIGHT.end_ns)) == after_s


@pytest.mark.parametrize("text", ["epoch#0", "epoch#3", "epoch#99999999999999999999", "epoch#0000000010", "#1", "epoch#²"])
def test_a_marker_that_is_not_there_is_answered_with_those_that_are(text: str) -> None:
    with pytest.raises(UserError, match=r"is no time: .*; its markers: epoch$"):
        moment(text, MIDNIGHT)


def test_of_many_markers_some_are_named_and_none_is_obeyed() -> None:
    many = made("2026-11-20T23:59:10+01:00", 660, **{f"\x1b[2Jstep {i}": i for i in range(9)})
    with pytest.raises(UserError) as told:
        moment("step", many)
    assert str(told.value).endswith("·[2Jstep 3, ·[2Jstep 4 and 4 more")
