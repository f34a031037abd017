"""Trials on made-up jobs: what is proved, what is not, and how often noise alone is taken for a gain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from math import exp, log
from random import Random

import pytest
from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, CudaCall, Serving
from gputop.prove.change import Case, Plan, TargetProcess
from gputop.prove.running import follow, proof, run, told
from gputop.prove.statistics import FALSE_POSITIVE, estimate, part_of, t_quantile
from gputop.prove.suspect import settings_of, settings_of_server
from gputop.prove.trial import JobSample, Outcome, Trial, TrialSettings, arm_of

TICK_S = 0.1
CASE = Case("cpu-contention", TargetProcess(7, 1, "train.py"), (), (), ())
PLAN = Plan("nice", "hog (8) to idle priority", (), may_keep=True)
Noise = Callable[[int, Random], float]  # step number, lot -> the factor on how long the step takes


class Job:
    """A job that makes ``per_s`` steps a second, and ``gain`` times as many with the intervention; a step is a copy and a synchronize."""

    def __init__(
        self, lot: Random, gain: float, per_s: float = 10.0, noise: Noise = lambda _n, _lot: 1.0, probed: bool = True, still: bool = False
    ) -> None:
        self.is_on = False
        self.switches: list[tuple[float, bool]] = []
        self._lot, self._gain, self._per_s, self._noise, self._probed, self._still = lot, gain, per_s, noise, probed, still
        self._t_s, self._steps, self._next_s, self._busy = 0.0, 0, 0.0, 0.0

    def on(self) -> None:
        self.is_on = True
        self.switches.append((self._t_s, True))

    def off(self) -> None:
        self.is_on = False
        self.switches.append((self._t_s, False))

    def samples(self, seconds: float = 300.0) -> Iterator[JobSample]:
        """One a tick; its clock is the samples' own."""
        while self._t_s < seconds:
            self._t_s += TICK_S
            before = self._steps
            while self._next_s <= self._t_s:
                self._steps += 1
                pace = self._per_s * (self._gain if self.is_on else 0.0 if self._still else 1.0)
                self._next_s += self._noise(self._steps, self._lot) / pace if pace else TICK_S
                self._steps -= not pace
            t_ns = round(self._t_s * SECOND_NS)
            calls = {name: CudaCall(1, name, self._steps, 0, 0) for name in ("cuMemcpyHtoDAsync_v2", "cuStreamSynchronize")}
            busy = min(100.0, 40.0 * (self._steps - before))
            yield JobSample(t_ns, calls if self._probed else {}, t_ns if self._probed else 0, busy, cause="cpu-contention")


def tried(job: Job, lot: Random, settings: TrialSettings = TrialSettings()) -> Outcome:  # noqa: B008 - frozen
    """A whole trial; its clock is the samples', so that it takes no time."""
    trial = Trial(settings, "cpu-contention", lot)
    is_on = False
    for sample in job.samples():
        trial.feed(sample)
        if trial.on != is_on:
            (job.on if trial.on else job.off)()
            is_on = trial.on
            trial.switched(sample.t_ns)
        if trial.outcome is not None:
            return trial.outcome
    raise AssertionError("the trial did not end")


def autocorrelated(spread: float, memory: float) -> Noise:
    """Step times whose logarithms wander: ``spread`` of a step, ``memory`` of it kept to the next."""
    state = [0.0]

    def factor(_number: int, lot: Random) -> float:
        state[0] = memory * state[0] + lot.gauss(0.0, spread * (1 - memory**2) ** 0.5)
        return exp(state[0])

    return factor


def drifting(per_step: float) -> Noise:
    return lambda number, _lot: exp(per_step * number)


def pausing(at_step: int, seconds: float) -> Noise:
    """One pause, of so many seconds at 10 steps a second."""
    return lambda number, _lot: 10.0 * seconds if number == at_step else 1.0


def test_a_gain_is_proved_in_three_pairs_and_told_with_its_interval() -> None:
    outcome = tried(Job(Random(1), 1.7, noise=autocorrelated(0.05, 0.5)), Random(1))
    assert (outcome.result, outcome.metric, len(outcome.pairs)) == ("proved", "steps", 3)
    assert outcome.estimate is not None
    assert outcome.estimate.low <= log(1.7) <= outcome.estimate.high
    assert outcome.seconds < 20.0
    line = told("fluent-bit (903) to idle priority", outcome)
    assert line.startswith("fluent-bit (903) to idle priority: 6")
    assert "steps/min, 1.7×," in line
    assert line.endswith("3 of 3 pairs: proved")


def test_no_gain_is_disproved() -> None:
    outcome = tried(Job(Random(2), 1.0, noise=autocorrelated(0.02, 0.3)), Random(2))
    assert outcome.result == "disproved"
    assert "disproved: no change (" in told("x", outcome)


def test_a_job_that_stands_still_without_it_has_no_finite_gain() -> None:
    job = Job(Random(3), 1.0, still=True)
    found = proof(CASE, PLAN, outcome := tried(job, Random(3)), None, "")
    assert (outcome.result, found.gain_pct, (found.steps_per_min_on or 0) > 0) == ("proved", None, True)
    assert found.missing["gain_pct"]


class Uncounted(Job):
    """A job whose calls are not counted for some seconds, while it works on."""

    def __init__(self, lot: Random, gain: float, lost_s: tuple[float, float], still: bool = False) -> None:
        super().__init__(lot, gain, noise=autocorrelated(0.03, 0.3), still=still)
        self._lost_s = lost_s

    def samples(self, seconds: float = 300.0) -> Iterator[JobSample]:
        missed = kept = before = 0
        for sample in super().samples(seconds):
            made = sample.calls["cuStreamSynchronize"].count
            if self._lost_s[0] <= sample.t_ns / SECOND_NS < self._lost_s[1]:
                missed += made - before
            before, kept = made, made - missed
            calls = {name: CudaCall(1, name, kept, 0, 0) for name in sample.calls}
            yield JobSample(sample.t_ns, calls, sample.calls_ns, sample.work_pct, cause=sample.cause)


@pytest.mark.parametrize("lost_s", [(0.0, 3.4), (6.5, 10.0), (12.4, 15.7)])
def test_an_arm_without_steps_while_the_gpu_works_as_before_is_no_arm(lost_s: tuple[float, float]) -> None:
    outcome = tried(Uncounted(Random(5), 1.5, lost_s), Random(5))
    assert (outcome.result, outcome.metric) == ("proved", "steps")
    assert outcome.dropped
    assert outcome.estimate is not None
    assert outcome.estimate.high < log(2.0)


def test_the_arms_of_a_job_that_stands_still_are_arms() -> None:
    outcome = tried(Job(Random(3), 1.0, still=True), Random(3))
    assert (outcome.result, outcome.dropped) == ("proved", 0)


def test_without_probes_the_work_of_the_gpu_is_compared() -> None:
    outcome = tried(Job(Random(4), 1.6, per_s=8.0, noise=autocorrelated(0.05, 0.5), probed=False), Random(4))
    assert (outcome.result, outcome.metric) == ("proved", "gpu_work")
    found = proof(CASE, PLAN, outcome, None, "needs the eBPF probes: not root")
    assert (found.steps_per_min_off, found.missing["steps_per_min"]) == (None, "needs the eBPF probes: not root")
    assert (found.gpu_work_on or 0.0) > (found.gpu_work_off or 0.0)


def test_the_order_is_by_lot_and_two_pairs_have_both_orders() -> None:
    seen = Counter()
    for seed in range(40):
        orders = [pair.order for pair in tried(Job(Random(seed), 1.0, noise=autocorrelated(0.3, 0.5)), Random(seed)).pairs]
        seen[orders[0]] += 1
        assert {*orders[:2]} == {"off-on", "on-off"}
    assert min(seen.values()) >= 8


@pytest.mark.parametrize(
    "noise",
    [autocorrelated(0.05, 0.0), autocorrelated(0.3, 0.9), autocorrelated(0.5, 0.5), drifting(0.002), drifting(-0.002), pausing(90, 3.0)],
    ids=["white", "wandering", "wild", "slower", "faster", "pause"],
)
def test_noise_alone_is_hardly_ever_proved(noise: Noise) -> None:
    runs = 150
    proved = 0
    for seed in range(runs):
        lot = Random(seed)
        proved += tried(Job(lot, 1.0, noise=noise), lot).result == "proved"
    assert proved <= 0.05 * runs + 3  # three standard deviations above 5 % would be 8 more


def test_a_pulse_is_never_longer_than_allowed_and_needs_no_more_than_a_minute() -> None:
    job = Job(Random(5), 1.6, per_s=40.0)
    outcome = tried(job, Random(5), TrialSettings(pulse_s=1.0))
    ons = [(begin, end) for (begin, on), (end, _off) in zip(job.switches, job.switches[1:], strict=False) if on]
    assert outcome.result == "proved"
    assert max(end - begin for begin, end in ons) <= 1.0 + TICK_S / 2
    assert not job.is_on


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"gone": True}, "the trainer has ended"), ({"paused": True}, "the job paused"), ({"cause": "disk-io"}, "another cause came up")],
)
def test_it_ends_undecided_with_the_reason(change: dict[str, object], reason: str) -> None:
    job = Job(Random(6), 1.0, noise=autocorrelated(0.6, 0.9))
    trial = Trial(TrialSettings(pairs=3), "cpu-contention", Random(6))
    for number, sample in enumerate(job.samples()):
        for name, value in change.items():
            if number > 30:
                setattr(sample, name, value)
        trial.feed(sample)
        if trial.on != job.is_on:
            job.is_on = trial.on
            trial.switched(sample.t_ns)
        if trial.outcome is not None:
            break
    assert trial.outcome is not None
    assert (trial.outcome.result, reason in trial.outcome.reason) == ("undecided", True)


def test_it_takes_a_minute_at_most_unless_asked() -> None:
    outcome = tried(Job(Random(7), 1.0), Random(7), TrialSettings(pairs=40, seconds=10.0))
    assert (outcome.result, outcome.seconds < 61.0) in (("undecided", True), ("disproved", True))


def test_a_switch_that_fails_ends_it_undecided_with_all_off() -> None:
    class Dead(Job):
        def on(self) -> None:
            raise OSError(3, "the guardian has died; all is put back")

    job = Dead(Random(8), 1.0)
    trial = Trial(TrialSettings(), "cpu-contention", Random(8))
    assert list(run(job.samples(), trial, job)) == []
    assert trial.outcome is not None
    assert (trial.outcome.result, trial.outcome.reason) == ("undecided", "the guardian has died; all is put back")


def test_a_kept_fix_is_followed_and_its_own_gain_told() -> None:
    job = Job(Random(9), 1.5)
    outcome = tried(job, Random(9))
    job.on()
    found = follow(job.samples(), outcome, 0.5, seconds=20.0)
    assert found.gain_pct == pytest.approx(50.0, abs=8.0)


def test_quantiles_of_t() -> None:
    assert t_quantile(0.975, 2) == pytest.approx(4.303, abs=0.001)
    assert t_quantile(0.975, 3) == pytest.approx(3.182, abs=0.001)
    assert t_quantile(0.95, 10) == pytest.approx(1.812, abs=0.001)
    assert estimate([0.1, 0.1, 0.1], (3, 4)).proved


@pytest.mark.parametrize("looks", [(3,), (3, 4), (3, 4, 6, 8), (4, 6, 8)])
def test_looks_share_the_chance_of_a_false_proof(looks: tuple[int, ...]) -> None:
    assert sum(part_of(pairs, looks) for pairs in looks) == pytest.approx(1.0)
    found = estimate([0.3, 0.2, 0.25], looks)
    half = t_quantile(1.0 - FALSE_POSITIVE * part_of(3, looks), 2) * 0.05 / 3**0.5
    assert (found.low, found.high) == (pytest.approx(0.25 - half), pytest.approx(0.25 + half))


@pytest.mark.parametrize(
    ("workers", "per_s", "settle_s", "most_s"),
    [(0, None, 0.5, 7.5), (2, None, 2.0, 6.0), (2, 10.0, 1.0, 7.0), (16, 10.0, 2.0, 6.0), (0, 1.0, 2.0, 6.0)],
)
def test_settling_follows_the_queue_and_an_arm_the_steps(workers: int, per_s: float | None, settle_s: float, most_s: float) -> None:
    made = settings_of(workers, per_s)
    assert (made.settle_s, made.most_s) == (pytest.approx(settle_s), pytest.approx(most_s))


@pytest.mark.parametrize("gain", [2.0, 8.0])
def test_only_the_slow_arms_of_a_slow_job_are_longer(gain: float) -> None:
    outcome = tried(Job(Random(3), gain, per_s=1.0, noise=autocorrelated(0.02, 0.3)), Random(3), settings_of(0, 1.0))
    assert (outcome.result, outcome.metric) == ("proved", "steps")
    assert outcome.estimate is not None
    assert exp(outcome.estimate.mean) == pytest.approx(gain, rel=0.1)
    assert all(pair.off.seconds > 2.6 > pair.on.seconds for pair in outcome.pairs)


@pytest.mark.parametrize(
    ("counts", "steps"),
    [
        ([0, 0, 1, 1, 1, 2, 2, 2, 3, 3], 3.0),  # a step each 0.3 s: 0.9 s are three of them, wherever they begin
        ([0, 1, 1, 1, 2, 2, 2, 3, 3, 3], 3.0),
        ([0, 2, 2, 2, 4, 4, 4, 6, 6, 6], 6.0),  # batches that come in twos
        ([0, 1, 2, 3, 3, 3, 3, 3, 3, 3], 4.0),  # then a stall, which is one step at most
        ([5, 5, 5, 5, 6, 6, 6, 6, 6, 6], 1.0),
        ([5] * 10, 0.0),
    ],
)
def test_slow_steps_are_counted_with_their_parts(counts: list[int], steps: float) -> None:
    samples = [JobSample(t * 10**8, {"sync": CudaCall(1, "sync", count, 0, 0)}, t * 10**8) for t, count in enumerate(counts)]
    assert arm_of(True, samples).steps["sync"] == pytest.approx(steps)


class Served(Job):
    """An inference server that is asked ``asked_per_s`` times a second and answers 4 tokens to each request, as many as it can: its page
    comes once a second."""

    def __init__(self, lot: Random, *, tokens_per_s: tuple[float, float], first_s: tuple[float, float], has_tokens: bool = True) -> None:
        super().__init__(lot, 1.0)
        self._tokens_per_s, self._first_s, self._has_tokens = tokens_per_s, first_s, has_tokens
        self._lot_of_pages = lot

    def samples(self, seconds: float = 300.0) -> Iterator[JobSample]:
        tokens = first_us = 0
        first: dict[int, int] = {}
        pages: tuple[Serving, ...] = ()
        for number, sample in enumerate(super().samples(seconds)):
            tokens += round(TICK_S * self._tokens_per_s[self.is_on] * exp(self._lot_of_pages.gauss(0.0, 0.03)))
            late_us = round(1e6 * self._first_s[self.is_on] * exp(self._lot_of_pages.gauss(0.0, 0.1)))
            first_us, bound = first_us + late_us, next(one for one in BOUNDS_US if late_us <= one)
            first[bound] = first.get(bound, 0) + 1
            if number % 10 == 0:
                counted = {"generated_tokens": tokens} if self._has_tokens else {}
                page = Serving(1, "127.0.0.1:8000", t_ns=sample.t_ns, finished=tokens // 4, first_token=dict(first))
                pages = (replace(page, first_token_us=first_us, **counted),)
            yield replace(sample, pages=pages)


BOUNDS_US = (50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000)


def test_a_servers_pace_is_its_tokens_by_its_own_counters() -> None:
    """Though its CUDA calls come as often as before; its times to the first token are printed beside."""
    job = Served(Random(1), tokens_per_s=(300.0, 640.0), first_s=(2.0, 0.2))
    outcome = tried(job, Random(1), settings_of_server())
    assert (outcome.result, outcome.metric) == ("proved", "tokens")
    assert outcome.estimate is not None
    assert outcome.estimate.low <= log(640 / 300) <= outcome.estimate.high
    line = told("fluent-bit (903) to idle priority", outcome)
    assert re.search(r": 30\d → 6[34]\d tokens/s, first token 1\.\d+ → 0\.\d+ s \(p99 ", line), line
    found = proof(CASE, PLAN, outcome, None, "")
    assert (found.tokens_per_s_off, found.tokens_per_s_on) == (pytest.approx(300, rel=0.05), pytest.approx(640, rel=0.05))
    assert (found.first_token_p99_s_off or 0.0) > 1.0 > (found.first_token_p99_s_on or 9.0)
    assert "tokens_per_s" not in found.missing
    assert found.pairs[0].off.tokens_per_s == pytest.approx(300, rel=0.1)


def test_a_server_that_is_asked_no_faster_gains_by_its_time_to_the_first_token() -> None:
    """Its tokens come at its clients' pace with and without the change."""
    outcome = tried(Served(Random(2), tokens_per_s=(200.0, 200.0), first_s=(1.6, 0.2)), Random(2), settings_of_server())
    assert (outcome.result, outcome.metric) == ("proved", "first_token")
    line = told("x", outcome)
    assert re.search(r": 1\.\d+ → 0\.\d+ s to the first token, \d+ → \d+ tokens/s, first token", line), line
    assert (proof(CASE, PLAN, outcome, None, "").gain_pct or 0.0) > 300.0


def test_no_gain_of_a_server_is_disproved() -> None:
    outcome = tried(Served(Random(3), tokens_per_s=(200.0, 200.0), first_s=(0.3, 0.3)), Random(3), settings_of_server())
    assert (outcome.result, outcome.metric) == ("disproved", "tokens")


def test_a_server_that_generates_fewer_tokens_gains_nothing_by_sooner_ones() -> None:
    outcome = tried(Served(Random(4), tokens_per_s=(200.0, 100.0), first_s=(0.9, 0.3)), Random(4), settings_of_server())
    assert (outcome.result, outcome.metric) == ("disproved", "tokens")
    assert "slower" in told("x", outcome)


def test_an_engine_that_counts_no_tokens_is_compared_by_its_requests() -> None:
    job = Served(Random(5), tokens_per_s=(100.0, 170.0), first_s=(0.3, 0.3), has_tokens=False)
    outcome = tried(job, Random(5), settings_of_server())
    assert (outcome.result, outcome.metric) == ("proved", "requests")


def test_a_page_from_before_the_switch_is_not_of_the_arm() -> None:
    """It is read once a second: the newest at the begin of an arm is of the time before."""
    def page(t_s: float, tokens: int) -> Serving:
        return Serving(1, "a", t_ns=round(t_s * SECOND_NS), generated_tokens=tokens)

    pages = [page(0.5, 0), page(0.5, 0), page(1.5, 900), page(1.5, 900), page(2.5, 1000)]
    samples = [JobSample(round(t_s * SECOND_NS), pages=(one,)) for t_s, one in zip((1.0, 1.2, 1.6, 2.0, 2.6), pages, strict=True)]
    arm = arm_of(True, samples)
    assert arm.value("tokens") == pytest.approx(100.0)
    assert arm_of(True, samples[:3]).value("tokens") is None
    again = [*samples, JobSample(4 * SECOND_NS, pages=(page(3.5, 10),))]
    assert arm_of(True, again).value("tokens") is None, "the server was started again"
