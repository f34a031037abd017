"""gputop's own scheduling priority, as the kernel keeps it: in processes of its own, since a test must not raise the runner's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gputop.system.priority import BEAT, OwnPriority
from tests.wait import PATIENCE_S

_THREADS = """
import os, threading
from gputop.system.priority import BEAT, MOST_SHARE, WATCHER, OwnPriority, raise_priority

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
OwnPriority(BEAT, MOST_SHARE).request()
raised.set()
thread.join()
"""


def test_threads_that_began_before_have_the_beats_rank_too() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
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


def _seconds(own: OwnPriority, share: float, first: int, last: int) -> list[int]:
    """The seconds from ``first`` to ``last`` in which the priority changed while the process takes ``share`` of a CPU."""
    return [at for at in range(first, last) if own.check(at * SECOND_NS, int(share * at * SECOND_NS))]


def test_who_takes_more_than_its_share_gives_up_its_place_and_gets_it_back_when_it_is_calm() -> None:
    asked = Asked()
    own = OwnPriority(BEAT, 0.3, asked)
    own.request()
    assert _seconds(own, 0.29, 0, 100) == []
    used_ns = int(0.29 * 100 * SECOND_NS)
    changed = [at for at in range(20) if own.check((100 + at) * SECOND_NS, used_ns + at * SECOND_NS)]
    assert changed == [1]  # 0.29 of four seconds and all of one are too much for five
    assert (own.granted, asked.ranks) == ("ordinary", [BEAT])
    assert "of a CPU over 5 s, more than 30%: SCHED_RR 3 is given up" in own.reason
    used_ns += 20 * SECOND_NS
    back = [at for at in range(20, 100) if own.check((100 + at) * SECOND_NS, used_ns)]
    assert back == [61]
    assert (own.granted, own.reason, asked.ranks) == ("SCHED_RR 3", "", [BEAT, BEAT])


def test_who_is_busy_for_ever_never_gets_it_back() -> None:
    asked = Asked()
    own = OwnPriority(BEAT, 0.3, asked)
    own.request()
    assert _seconds(own, 0.4, 0, 1000) == [4]
    assert asked.ranks == [BEAT]


def test_looking_seldom_is_no_reason_to_give_it_up() -> None:
    """The recorder looks each ten seconds, of which each may have taken its share."""
    own = OwnPriority(BEAT, 0.3, Asked())
    own.request()
    assert not any(own.check(at * 10 * SECOND_NS, int(at * 2.9 * SECOND_NS)) for at in range(20))


@pytest.mark.parametrize("granted", ["", "ordinary: raising it needs CAP_SYS_NICE"])
def test_who_has_none_gives_up_nothing(granted: str) -> None:
    own = OwnPriority(BEAT, 0.3, Asked(granted))
    own.request()
    assert _seconds(own, 1.0, 0, 100) == []
    assert own.reason == ""


_GIVEN_UP = """
import os, threading
from gputop.system.priority import BEAT, CALM_NS, OwnPriority

own, ends = OwnPriority(BEAT, 0.3), threading.Event()
own.request()
thread = threading.Thread(target=ends.wait)
thread.start()

def policies():
    return {os.sched_getscheduler(int(tid)) for tid in os.listdir("/proc/self/task")}

print(policies() == {os.SCHED_RR})
own.check(0, 0)
own.check(10**9, 10**10)
print(policies() == {os.SCHED_OTHER})
own.check(CALM_NS + 2 * 10**9, 10**10)
own.check(CALM_NS + 9 * 10**9, 10**10)
print(policies() == {os.SCHED_RR}, own.granted)
ends.set()
thread.join()
"""


def test_all_threads_give_it_up_and_get_it_back() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    done = subprocess.run([sys.executable, "-c", _GIVEN_UP], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.split() == ["True", "True", "True", "SCHED_RR", "3"]
