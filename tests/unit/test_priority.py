"""The place before crowds, as the kernel keeps it: in a process of its own, for a test's is not to be raised."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gputop.system.priority import BEAT, Place

_THREADS = """
import os, threading
from gputop.system.priority import BEAT, MOST_SHARE, WATCHER, Place, raise_priority

asked, raised = threading.Event(), threading.Event()

def work():
    inherited = os.sched_getparam(0).sched_priority
    asked.set()
    raised.wait()
    print(inherited, os.sched_getparam(0).sched_priority)

raise_priority(WATCHER)
thread = threading.Thread(target=work)
thread.start()
asked.wait()
Place(BEAT, MOST_SHARE).take()
raised.set()
thread.join()
"""


def test_threads_that_began_before_have_the_beats_rank_too() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["2", "3"]


SECOND_NS = 1_000_000_000


class Asked:
    """Grants what is asked for, or not, and remembers it."""

    def __init__(self, granted: str = "SCHED_RR 3") -> None:
        self.ranks: list[int] = []
        self.granted = granted

    def __call__(self, rank: int) -> str:
        self.ranks.append(rank)
        return self.granted


def _seconds(place: Place, share: float, first: int, last: int) -> list[int]:
    """Its process takes so much of a CPU from the one second to the other; the seconds in which its place changed."""
    return [at for at in range(first, last) if place.note(at * SECOND_NS, int(share * at * SECOND_NS))]


def test_who_takes_more_than_its_share_gives_up_its_place_and_gets_it_back_when_it_is_calm() -> None:
    asked = Asked()
    place = Place(BEAT, 0.3, asked)
    place.take()
    assert _seconds(place, 0.29, 0, 100) == []
    used_ns = int(0.29 * 100 * SECOND_NS)
    changed = [at for at in range(20) if place.note((100 + at) * SECOND_NS, used_ns + at * SECOND_NS)]
    assert changed == [1]  # 0.29 of four seconds and all of one are too much for five
    assert (place.told, asked.ranks) == ("ordinary", [BEAT])
    assert "of a CPU over 5 s, more than 30%: SCHED_RR 3 is given up" in place.reason
    used_ns += 20 * SECOND_NS
    back = [at for at in range(20, 100) if place.note((100 + at) * SECOND_NS, used_ns)]
    assert back == [61]
    assert (place.told, place.reason, asked.ranks) == ("SCHED_RR 3", "", [BEAT, BEAT])


def test_who_is_busy_for_ever_never_gets_it_back() -> None:
    asked = Asked()
    place = Place(BEAT, 0.3, asked)
    place.take()
    assert _seconds(place, 0.4, 0, 1000) == [4]
    assert asked.ranks == [BEAT]


def test_looking_seldom_is_no_reason_to_give_it_up() -> None:
    """The recorder looks each ten seconds, of which each may have taken its share."""
    place = Place(BEAT, 0.3, Asked())
    place.take()
    assert not any(place.note(at * 10 * SECOND_NS, int(at * 2.9 * SECOND_NS)) for at in range(20))


@pytest.mark.parametrize("granted", ["", "ordinary: raising it needs CAP_SYS_NICE"])
def test_who_has_none_gives_up_nothing(granted: str) -> None:
    place = Place(BEAT, 0.3, Asked(granted))
    place.take()
    assert _seconds(place, 1.0, 0, 100) == []
    assert place.reason == ""


_GIVEN_UP = """
import os, threading
from gputop.system.priority import BEAT, CALM_NS, Place

place, ends = Place(BEAT, 0.3), threading.Event()
place.take()
thread = threading.Thread(target=ends.wait)
thread.start()

def policies():
    return {os.sched_getscheduler(int(tid)) for tid in os.listdir("/proc/self/task")}

print(policies() == {os.SCHED_RR})
place.note(0, 0)
place.note(10**9, 10**10)
print(policies() == {os.SCHED_OTHER})
place.note(CALM_NS + 2 * 10**9, 10**10)
place.note(CALM_NS + 9 * 10**9, 10**10)
print(policies() == {os.SCHED_RR}, place.told)
ends.set()
thread.join()
"""


def test_all_threads_give_it_up_and_get_it_back() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    done = subprocess.run([sys.executable, "-c", _GIVEN_UP], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "True", "True", "SCHED_RR", "3"]
