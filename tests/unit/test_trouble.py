"""Kinds of trouble, and what is shown of them beside a verdict."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputop.findings.explanation import episode
from gputop.findings.trouble import Trouble, costs_time, gpu_about, grows, heading, is_fault, kind_of, notice, stops_job
from gputop.findings.verdict import Evidence, Verdict
from gputop.fleet.jobs import Job, JobRank
from gputop.fleet.summary import Rank
from gputop.model.frame import SECOND_NS, Header
from gputop.stream.kept import _incident_key
from tests.alerts.made import incident

MADE = {
    Trouble.LOSS: incident(),
    Trouble.PAUSED: incident(cause="pause", severity="info"),
    Trouble.LOST_GPU: incident(cause="gpu-lost", trainer_pid=None, gpu=3),
    Trouble.GROWTH: incident(cause="host-memory-growth", gpu=None, evidence=[Evidence("left_s", 240.0, "s", "")]),
    Trouble.ORPHAN: incident(cause="hung-worker", trainer_pid=None, gpu=None),
    Trouble.LINK: incident(cause="link-errors", trainer_pid=None, gpu=3, headline="NVLink 14 of GPU 3 errs"),
    Trouble.SLOWER: incident(cause="slower-than-usual", gpu=None, headline="train.py is slower"),
}
SHOWN = {
    Trouble.LOST_GPU: "GPU 3 is lost", Trouble.GROWTH: "memory ends in 4 min", Trouble.ORPHAN: "worker 3840 outlived its trainer",
    Trouble.LINK: "NVLink 14 of GPU 3 errs", Trouble.SLOWER: "train.py is slower",
}  # fmt: skip


@pytest.mark.parametrize("kind", Trouble)
def test_an_incident_is_of_one_kind_in_each_shape(kind: Trouble) -> None:
    assert kind_of(MADE[kind]) is kind_of(episode(MADE[kind], Header())) is kind


@pytest.mark.parametrize("kind", Trouble)
def test_beside_a_verdict_stands_what_it_is_not_about_while_it_lasts(kind: Trouble) -> None:
    healthy = Verdict(symptom="healthy")
    assert notice([MADE[kind]], healthy)[0] == SHOWN.get(kind, "")
    assert notice([replace(MADE[kind], end_ns=11 * SECOND_NS)], healthy) == ("", "")


def test_a_hang_of_a_trainer_is_no_orphan_and_another_programs_word_is_a_loss() -> None:
    assert kind_of(incident(cause="hung-worker")) is Trouble.LOSS
    assert kind_of(incident(cause="a-plug-ins", trainer_pid=None)) is Trouble.LOSS


def test_nothing_is_felt_of_memory_that_grows_and_a_pause_is_no_fault() -> None:
    assert [kind for kind, one in MADE.items() if not costs_time(one)] == [Trouble.GROWTH, Trouble.LINK, Trouble.SLOWER]
    assert [kind for kind, one in MADE.items() if not is_fault(one)] == [Trouble.PAUSED]
    assert heading("input-bound", MADE[Trouble.LOSS], "←") == "input-bound ← cpu-contention"
    assert heading("healthy", MADE[Trouble.GROWTH], "←") == "host-memory-growth"


def test_a_lost_gpu_stops_a_job_and_memory_that_grows_has_a_lane() -> None:
    assert [kind for kind, one in MADE.items() if stops_job(one)] == [Trouble.LOST_GPU]
    assert [kind for kind, one in MADE.items() if grows(one)] == [Trouble.GROWTH]


def test_an_incident_is_about_the_gpu_itself_whoever_uses_it_or_about_who_uses_it() -> None:
    assert [kind for kind, one in MADE.items() if gpu_about(one, 5) == 5] == [Trouble.LOST_GPU, Trouble.GROWTH, Trouble.LINK]
    two = [episode(incident(cause="gpu-memory-growth", gpu=gpu), Header()) for gpu in (0, 1)]
    assert len({_incident_key(one) for one in two}) == 2, "one that grows on another GPU does not go on with the first one's"


def test_a_rank_and_a_job_are_of_the_kind_of_their_cause() -> None:
    hung, paused, bereft = (Rank(7, cause=cause) for cause in ("hung-worker", "pause", "gpu-lost"))
    assert [kind_of(one) for one in (hung, paused, bereft)] == [Trouble.LOSS, Trouble.PAUSED, Trouble.LOST_GPU]
    job = Job("k", "train", 1, (JobRank("a", hung, 0),), cause="hung-worker")
    assert kind_of(job) is Trouble.LOSS
