"""The wait-for chain: where a job's lost GPU time lies.

It is walked from the GPU's loss to what the trainer's main thread did meanwhile, and from a wait for data to what kept
the workers that owed it. Each end of the walk is a *pool*: a path with its share of the loss. Causes claim pools
(`gputop.diagnosis.verdicts`); what nobody claims stays unexplained.

    data.running  data.runnable  data.throttled  data.disk  data.memory  data.stopped     what the workers did
    data.lock  data.network  data.pipe  data.timer  data.queue  data.unknown              what blocked them
    data.starting  data.ahead                                                             just born; all ahead, yet the trainer waits
    main.computing  main.runnable  main.throttled  main.transfer  main.disk  main.memory  main.stopped
    main.lock  main.network  main.pipe  main.timer  main.unknown  …                       what blocked the trainer
    main.sync                                                                             it waited for a GPU that had nothing to do
    gpu.light  gpu.slowed  gpu.peer                                                       busy, not working: `gputop.diagnosis.intensity`
    gpu.turns                                                                             another GPU of the same process was at work
"""

from __future__ import annotations

from gputop.diagnosis import feeders
from gputop.diagnosis.capacity import capacity, is_held
from gputop.diagnosis.facts import Facts, JobFacts
from gputop.diagnosis.proc import ProcFacts
from gputop.diagnosis.states import THROTTLED_PERIODS

YOUNG_NS = 2_000_000_000  # a worker is starting for this long: interpreter, imports, dataset, first batch
DELAYED, FREE = 0.5, 0.7
"""Workers that run less than the former share of their busy time are late for what keeps them, from the latter share on for
their own work; between the two it is shared out."""
_KEPT_FROM = ("runnable", "throttled", "transfer", "disk", "memory", "stopped")
"""States that keep the trainer from computing, beside what it is blocked on."""
_FOR_PROGRAMS = ("pipe", "child")
_FED = (*_FOR_PROGRAMS, "network", "poll", "lock")
"""What a wait for who feeds a trainer may look like: through a pipe or UNIX socket, another socket, or shared memory."""
OUTRUN = 0.25  # of the CPUs that it lacks, as many as strangers must take for a program's wait to be theirs
OWED, ONE_OWES = 0.05, 0.5
"""Below this mean share of time in which workers were not ahead, nobody of them owed a batch, unless one alone did for the latter share."""


def set_pools(job: JobFacts, facts: Facts) -> None:
    """Fill in ``job.pools``; empty where there is no loss, or none can be told."""
    loss = job.idle if job.idle is not None else host_side_loss(job)
    starting = min(job.respawned or 0.0, loss)
    pools = {f"gpu.{kind}": share for kind, share in job.waste.items()} | {"gpu.turns": job.turns}
    loss -= starting
    data = min(max(0.0, job.data - starting), loss)
    for name, share in _worker_shares(job, facts).items() if data > 0.0 else ():
        pools[f"data.{name}"] = share * data
    for name, share in _main_shares(job, facts, loss - data).items():
        pools[f"main.{name}"] = share
    pools["data.starting"] = pools.get("data.starting", 0.0) + starting
    total = sum(pools.values())
    job.pools = {name: share / total for name, share in pools.items() if share > 0.0}


def host_side_loss(job: JobFacts) -> float:
    """Without a GPU to measure: the share of time in which the trainer neither computed nor, as far as one can tell, waited for it."""
    fractions = job.trainer.state.fractions
    return max(0.0, 1.0 - fractions.get("computing", 0.0) - fractions.get("waiting-gpu", 0.0))


def _main_shares(job: JobFacts, facts: Facts, loss: float) -> dict[str, float]:
    """The loss outside data waits over what the main thread did; what its states cannot hold lies in its wait for the GPU."""
    if loss <= 0.0:
        return {}
    fractions = job.trainer.state.fractions
    # Whether a GPU that nobody measures waits for its computing is not known.
    words = _KEPT_FROM if job.idle is None else ("computing", *_KEPT_FROM)
    shares = {word: fractions.get(word, 0.0) for word in words}
    shares |= blocked_on(job.trainer)
    if job.trainer.held_up >= feeders.HELD_UP:  # what samples met as another sleep, beyond the GPU's work, is a part of that wait
        for kind in feeders.UNSURE:
            _shift(shares, kind, "pipe", shares.get(kind, 0.0))
    if not job.workers:
        _call_lock(job, shares)
        _shift(shares, "lock", "pipe", shares.get("lock", 0.0) * feeders.programs_read(job))
        _wait_for_programs(job, facts, shares)
        _wait_for_late_programs(job, facts, shares)
    _wait_for_own_threads(job, job.trainer, shares, "lock")
    held = sum(shares.values())
    scale = min(1.0, loss / held) if held > 0.0 else 0.0
    found = {name: share * scale for name, share in shares.items()}
    found["sync"] = max(0.0, loss - held * scale)
    return found


def blocked_on(proc: ProcFacts, left_out: str = "") -> dict[str, float]:
    """The blocked share of its time by what was waited for, but for one kind that is no delay."""
    share = proc.state.fractions.get("blocked", 0.0)
    waits = {kind: part for kind, part in proc.state.waits.items() if kind != left_out}
    total = sum(waits.values())
    return {kind: share * part / total for kind, part in waits.items()} if total > 0.0 else {"unknown": share}


def _worker_shares(job: JobFacts, facts: Facts) -> dict[str, float]:
    """What the workers that were not ahead did, as shares summing to 1."""
    if not job.workers:
        return {"starting": 1.0} if job.births else {"ahead": 1.0}
    totals: dict[str, float] = {}
    most = 0.0
    for worker in job.workers:
        young = job.respawned is None and facts.t_ns - worker.began_ns < YOUNG_NS and bool(job.births)
        owing = _owing(job, worker, young)
        most = max(most, sum(owing.values()))
        for name, share in owing.items():
            totals[name] = totals.get(name, 0.0) + share
    _wait_for_programs(job, facts, totals)
    owed = sum(totals.values())
    if owed < OWED * len(job.workers) and most < ONE_OWES:
        return {"ahead": 1.0}
    return _lean_to_delays({name: share / owed for name, share in totals.items()})


def _owing(job: JobFacts, worker: ProcFacts, young: bool) -> dict[str, float]:
    fractions = worker.state.fractions
    if young:
        return {"starting": 1.0 - fractions.get("ahead", 0.0)}
    found = {word: share for word, share in fractions.items() if word not in ("ahead", "blocked")}
    if "blocked" in fractions:
        found |= blocked_on(worker, left_out="queue")  # being ahead
    _wait_for_own_threads(job, worker, found, "running")
    _ask_own_threads(job, worker, found)
    _wait_for_own_programs(worker, found)
    return found


def _wait_for_own_threads(job: JobFacts, proc: ProcFacts, found: dict[str, float], own_work: str) -> None:
    """Who waits for threads of its own waits for what these are late for: the disk, the network, a CPU, or their ``own_work``."""
    locked = found.get("lock", 0.0)
    if locked <= 0.1:
        return
    for kind, share in feeders.threads_wait(job, proc).items():
        _shift(found, "lock", kind, locked * share)
    wanted = proc.others_run + proc.others_runnable
    if wanted >= feeders.AT_WORK:
        most = max(1.0, proc.others_run) if proc.takes_turns else wanted
        free = _own_work(proc.others_run / min(wanted, most))
        _shift_to_cpu(found, "lock", found["lock"] * (1.0 - free))
        _shift(found, "lock", own_work, min(found["lock"], proc.others_run))


def _ask_own_threads(job: JobFacts, worker: ProcFacts, found: dict[str, float]) -> None:
    """Who sleeps by a timer while its threads load looks again and again whether they have (downloads that become files)."""
    slept = found.get("timer", 0.0)
    for kind, share in feeders.threads_wait(job, worker).items() if slept > 0.0 else ():
        _shift(found, "timer", kind, slept * share)


def _wait_for_own_programs(worker: ProcFacts, found: dict[str, float]) -> None:
    """Who waits at a pipe for a program of its own that computes is late for that, or for the CPU that it waits for."""
    ran, waited = worker.programs
    wanted = ran + waited
    for word in _FOR_PROGRAMS if wanted >= feeders.AT_WORK else ():
        asleep, free = found.get(word, 0.0) * min(1.0, wanted), _own_work(ran / wanted)
        _shift(found, word, "running", asleep * free)
        _shift_to_cpu(found, word, asleep * (1.0 - free))


def _wait_for_late_programs(job: JobFacts, facts: Facts, found: dict[str, float]) -> None:
    """A trainer that waits for a program's output, or for who feeds it, waits for the CPU where that one does, and not behind its like
    unless all are held to few CPUs."""
    ran, waited = job.trainer.programs
    wanted = ran + waited
    late = min(1.0, wanted) * (1.0 - _own_work(ran / wanted)) if wanted >= feeders.AT_WORK else 0.0
    if late <= 0.0:
        return
    kept = "throttled" if job.fed_throttled_periods >= THROTTLED_PERIODS or found.get("throttled") else "runnable"
    cpus = capacity(job, facts)
    if kept == "runnable" and cpus.strangers_part < OUTRUN and not is_held(job, cpus):
        return
    due = job.fed
    for word in _FED:
        share = found.get(word, 0.0) if word in _FOR_PROGRAMS else min(due, found.get(word, 0.0))
        due = max(0.0, due - share)
        _shift(found, word, kept, share * late)


def _call_lock(job: JobFacts, found: dict[str, float]) -> None:
    """A step that keeps time with the samples lets these meet one of its waits only; where threads load, or read what others do, the rest
    is for them."""
    loading = feeders.threads_wait(job, job.trainer) or feeders.programs_read(job) or (job.fed and not feeders.only_sleep(job))
    if loading and not feeders.serves(job):
        for kind in feeders.UNSURE:
            _shift(found, kind, "lock", found.get(kind, 0.0))


def _wait_for_programs(job: JobFacts, facts: Facts, found: dict[str, float]) -> None:
    """Who reads what a program writes, or waits for its end, waits for what the program is late for."""
    asleep = {word: found[word] for word in ("pipe", "child") if word in found}
    for kind, share in feeders.programs_wait(job, facts).items() if asleep else ():
        for word, waited in asleep.items():
            _shift(found, word, kind, waited * share)


def _shift(found: dict[str, float], source: str, target: str, share: float) -> None:
    found[source] = found.get(source, 0.0) - share
    found[target] = found.get(target, 0.0) + share


def _shift_to_cpu(found: dict[str, float], source: str, share: float) -> None:
    """To the wait for a CPU, which the quota keeps from all where it does from one."""
    _shift(found, source, "throttled" if found.get("throttled") else "runnable", share)


def _own_work(running: float) -> float:
    """How far it is its own work that somebody is late for who runs for this share of the time in which he wants to."""
    return min(1.0, max(0.0, (running - DELAYED) / (FREE - DELAYED)))


def _lean_to_delays(shares: dict[str, float]) -> dict[str, float]:
    """Put the workers' own running down to what delays them, the more the smaller its part is."""
    running = shares.get("running", 0.0)
    keep = _own_work(running)
    if keep == 1.0 or running >= 1.0:
        return shares
    scale = 1.0 + running * (1.0 - keep) / (1.0 - running)
    return {name: share * (keep if name == "running" else scale) for name, share in shares.items()}
