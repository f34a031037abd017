"""The summary that a node sends once a second, of a few kilobytes.

The node diagnoses itself, for it alone has the threads' samples; the observer of many nodes judges the jobs that run on several. Counters
are cumulative since the node's stream began, so that a lost second costs nothing.

On the wire it is a block of kind 9 in the node's stream (`gputop.recording.format`): msgpack in one zstd frame that states its size. It
grows like a frame (`gputop.model.frame`): `Summary`, `Node` and `Rank` are maps, whose unknown fields are skipped; rows are arrays that
grow at their end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import zstandard
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, astuple, replace

from gputop.diagnosis import Engine
from gputop.diagnosis.facts import intensity
from gputop.diagnosis.facts.facts import Facts
from gputop.diagnosis.symptoms import Standing
from gputop.findings import sentence
from gputop.findings.explanation import Episode, episode, evidence_from, fixes_from, in_general, requests_from, steps_from
from gputop.findings.ranks import RankPace
from gputop.findings.trouble import stops_job
from gputop.findings.verdict import Culprit, Evidence, Fix, Incident, Ledger, PathStep, Requests, Verdict, Word, best_fix
from gputop.findings.ways import words
from gputop.model.board import Board, GpuBoard
from gputop.model.frame import Header, ProcInfo
from gputop.model.identity import SHORT_ID, job_key, known_of
from gputop.model.parallel import Parallel
from gputop.model.ranges import (
    Bits,
    Bytes,
    BytesPerSecond,
    Celsius,
    Count,
    Cpus,
    Gpus,
    Ns,
    Percent,
    PerSecond,
    Pid,
    Ranks,
    Seconds,
    Share,
    Watts,
    fitted,
)
from gputop.model.roles import SIZE_VARIABLES, number_in, program_name
from gputop.recording.format import KIND_SUMMARY, pack
from gputop.system.decoding import BROKEN
from gputop.system.program import __version__
from gputop.system.text import clean

VERSION = 1  # of the summary; a newer one may mean something else by the same fields
MOST_BYTES = 256 << 10  # of a summary's msgpack; eight ranks in trouble take 5 kB, and 1.5 on the wire
LEVEL = 1  # of zstd; 3 takes twice the CPU for 3 % fewer bytes
MOST_RANKS, MOST_GPUS, MOST_CAUSES, MOST_NAMES = 256, 1024, 64, 64  # in a summary; see MOST_TRAINERS of `gputop.model.roles`
NEWEST = 8  # incidents that are sent
NAMED = 3  # culprits of a rank, and of an incident; numbers behind the verdict
MOST_STEPS = 16  # of the path to the cause
TEXT, NAME = 300, 80  # characters of a source's reason, and of a name
LEAST_SHARE = 0.005  # of the window, to be sent

_Shares = Annotated[dict[Word, Share], Meta(max_length=MOST_CAUSES)]
_Names = Annotated[dict[str, str], Meta(max_length=MOST_NAMES)]


class GpuRow(Struct, frozen=True, array_like=True, gc=False):
    """One GPU now; None: not measured."""

    index: Gpus
    name: str = ""
    uuid: str = ""
    util_pct: Percent | None = None
    sm_active_pct: Percent | None = None
    mem_used_bytes: Bytes | None = None
    mem_total_bytes: Bytes | None = None
    power_w: Watts | None = None
    power_limit_w: Watts | None = None
    temp_c: Celsius | None = None
    throttle_mask: Bits | None = None  # as `gputop.model.gpu.Gpu.throttle_mask`
    lost: bool | None = None  # the driver has lost it; None: it does not report that


class Node(Struct, frozen=True, omit_defaults=True, gc=False):
    """The machine over the window; shares are 0..1, None: not measured."""

    cpus: Cpus = 0
    cpu: Share | None = None  # busy share of all CPUs
    runnable: Share | None = None  # mean share of the time that main threads of trainers and workers waited for a CPU
    throttled: Share | None = None  # the greatest share of periods in which a job's quota was used up
    psi_io: Share | None = None
    psi_memory: Share | None = None
    net_rx_bytes_per_s: BytesPerSecond | None = None
    workers: Count = 0
    starving: Count = 0  # workers that starve


class RankWire(Struct, frozen=True, array_like=True, gc=False):
    """TCP connections of a rank over the window; addresses and interface are of its busiest one."""

    busy: Share  # of the time in which that one had data on the wire
    sent_bytes_per_s: BytesPerSecond = 0.0
    received_bytes_per_s: BytesPerSecond = 0.0
    retrans_per_s: PerSecond = 0.0
    interface: str = ""
    own: str = ""  # ``10.0.0.1:29500``
    peer: str = ""


class Rank(Struct, frozen=True, omit_defaults=True, gc=False):
    """One trainer over the window. Shares are 0..1."""

    pid: Pid
    job: str = ""  # key of the training that it is a rank of, equal on all its nodes; ``~`` first: two trainings alike look the same
    rank: Ranks | None = None
    size: Ranks | None = None  # ranks of its training
    program: str = ""
    gpus: Annotated[list[Gpus], Meta(max_length=MOST_GPUS)] = []
    phase: Word = ""  # a word of `gputop.findings.verdict.ANY`
    states: _Shares = {}  # of its main thread
    pace: RankPace | None = None  # shows whether the others wait for it; None: it is not known whether its GPUs work
    steps_per_s: PerSecond | None = None
    symptom: Word = ""
    cause: Word = "none"  # of one that the others of its training wait for: why it is late, where that is known
    shares: _Shares = {}  # cause -> share of what is lost now
    lost: Share | None = None  # share of its GPUs' time now
    why: str = ""  # what is wrong, in a line
    culprits: Annotated[list[Culprit], Meta(max_length=MOST_NAMES)] = []
    ledger: Ledger = field(default_factory=Ledger)  # since the node's stream began
    workers: Count = 0
    starving: Count = 0
    still_s: Seconds = 0.0  # time without a move of any of its processes
    waits_for: Pid | None = None  # pid of the straggler of its training, where that is on this node; itself where it is the one
    absent: Annotated[list[Ranks], Meta(max_length=MOST_RANKS)] = []  # ranks that should be on this node and are not
    ways: str = ""  # on which its data move to other ranks (`gputop.findings.ways.words`)
    identity: _Names = {}  # ``user``, ``slurm_job``, ``namespace``, ``pod``, ``container``, if known
    wire: RankWire | None = None  # None: no connections with other ranks are read
    parallel: Parallel | None = None  # sizes of its training's groups; None: neither its command line nor its configuration states them

    @property
    def trainer_pid(self) -> int:
        """The trainer that its cause is about: it is the trainer itself (see `gputop.findings.trouble`)."""
        return self.pid


class Summary(Struct, frozen=True, omit_defaults=True, gc=False):
    """One second of one node."""

    v: Count = VERSION
    gputop: str = ""
    rules: Count = 0  # CRC-32 of the rules by which the node judged (`gputop.stream.kept.rules`)
    host: str = ""  # as it calls itself; who reads it knows it by its link
    boot_id: str = ""
    t_ns: Ns = 0  # CLOCK_MONOTONIC of the last frame in it
    unix_ns: Ns = 0  # its wall clock then
    simulated: bool = False
    verdict: Verdict = Verdict()  # the node's own, of its worst trainer: `Verdict.brief`
    fix: Fix | None = None  # to offer for that; None: there is none
    path: Annotated[list[PathStep], Meta(max_length=MOST_STEPS)] = []  # to its cause; empty where nothing is wrong
    evidence: Annotated[list[Evidence], Meta(max_length=MOST_STEPS)] = []  # of it: the first `NAMED`
    requests: Requests | None = None  # of the inference server that the verdict is about, with their way through it
    node: Node = Node()
    gpus: Annotated[list[GpuRow], Meta(max_length=MOST_GPUS)] = []
    ranks: Annotated[list[Rank], Meta(max_length=MOST_RANKS)] = []
    ledger: Ledger = field(default_factory=Ledger)  # since the node's stream began
    incidents: Annotated[list[Episode], Meta(max_length=MOST_NAMES)] = []  # newest first: `Episode.brief`
    sources: _Names = {}  # source that does not read all -> its reason
    cpu_ns: Ns = 0  # CPU time of gputop on the node since it started
    rss_bytes: Bytes = 0
    dropped: Count = 0  # frames that did not fit into the pipe
    took_s: Seconds = 0.0  # time to make this summary on the node, diagnosis included; 0: unknown


def pack_summary(summary: Summary) -> bytes:
    """The block."""
    return pack(KIND_SUMMARY, summary_payload(summary), t_ns=summary.t_ns)


def summary_payload(summary: Summary) -> bytes:
    """Bytes of a summary, for `read_summary`."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(sentence.pack(summary))


def read_summary(payload: bytes) -> Summary:
    """The summary in a block. It may come from anyone: names are cleaned and cut, and sentences are made of templates of ours
    (`gputop.findings.sentence`). ValueError if it is too large, a number is out of its range, or it is no summary."""
    try:
        size = zstandard.get_frame_parameters(payload).content_size  # the decompressor allocates so much
        if size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES >> 10} KiB")
        data = zstandard.ZstdDecompressor(max_window_size=MOST_BYTES << 2).decompress(payload)
        found = sentence.unpack(data, Summary)
        cleaned: Summary = _cleaned(replace(found, verdict=found.verdict.brief(), incidents=[one.brief() for one in found.incidents]))
        fixes = [] if found.fix is None else fixes_from([found.fix])
        requests = None if found.requests is None else requests_from(found.requests)
        path, evidence = steps_from(found.path), evidence_from(found.evidence)
        return replace(cleaned, fix=next(iter(fixes), None), path=path, evidence=evidence, requests=requests)
    except (*BROKEN, zstandard.ZstdError) as error:
        raise ValueError(f"a summary cannot be read: {clean(str(error), NAME)}") from None


def _cleaned(value: Any, limit: int = NAME) -> Any:
    """The value with harmless names, and with sentences of ours: where one is another's, what its cause is in general."""
    kind = type(value)
    if kind is str or kind is sentence.Sentence:
        text = str(value)
        return text if len(text) <= limit and text.isascii() and text.isprintable() else clean(text, limit)
    if kind is list:
        return [_cleaned(one) for one in value]
    if kind is dict:
        return {_cleaned(key): _cleaned(one, TEXT) for key, one in value.items()}
    if kind not in _KINDS:
        return value
    fields = [_cleaned(one) if type(one) in _MADE_OF else one for one in astuple(value)]
    for name in _SENTENCES.get(kind, ()):
        told: str = getattr(value, name)  # where it is ours it stays as it came
        fields[_KINDS[kind][name]] = told if not told or sentence.is_own(told) else in_general(value.cause)
    return kind(*fields)


_SENTENCES = {Episode: ("headline",), Verdict: ("headline", "detail"), Rank: ("why",)}
_KINDS = {
    kind: {name: i for i, name in enumerate(kind.__struct_fields__)}
    for kind in (Culprit, GpuRow, Ledger, Episode, Verdict, Node, RankPace, RankWire, Rank, Summary)
}
"""Struct of a summary -> positions of its fields."""
_MADE_OF = {*_KINDS, str, sentence.Sentence, list, dict}


def summarize(board: Board, engine: Engine, rules: int = 0) -> Summary:
    """Summary of the board as it stands, and of what ``engine`` found at its last feed."""
    header, cost, verdict = board.header, board.cost, engine.verdict
    ranks = [_rank(one, engine, header.host) for one in list(engine.standing.values())[:MOST_RANKS]]
    return fitted(Summary(
        gputop=__version__, rules=rules, host=header.host, boot_id=header.boot_id, t_ns=board.t_ns,
        unix_ns=header.unix_ns_of(board.t_ns), simulated=header.simulated, verdict=verdict.brief(),
        fix=best_fix(verdict.fixes), path=[*verdict.path][:MOST_STEPS], evidence=[*verdict.evidence][:NAMED],
        requests=verdict.requests, node=_node(engine.facts, ranks, board),
        gpus=[_gpu(board.gpus[index]) for index in sorted(board.gpus)[:MOST_GPUS]],
        ranks=ranks, ledger=engine.ledger.rounded(), incidents=_incidents(engine.incidents, header),
        sources={one.name: one.reason[:TEXT] for one in board.sources.values() if one.state not in ("ok", "off")},
        cpu_ns=cost.cpu_ns if cost else 0, rss_bytes=cost.rss_bytes if cost else 0, dropped=cost.dropped if cost else 0,
    ))  # fmt: skip


def _rank(one: Standing, engine: Engine, host: str) -> Rank:
    job, trainer, pid = one.job, one.job.trainer, one.job.trainer.pid
    states = {word: round(share, 3) for word, share in trainer.state.fractions.items() if share >= LEAST_SHARE}
    own = engine.by_itself(pid)
    one = own if own is not None and own.cause not in ("none", "unexplained") else one
    worded = one.verdict if one.troubled else None
    key = job_key(trainer.info, host)
    step, pace, ledger = job.step, intensity.pace_of(job), engine.ledgers.get((pid, trainer.info.start_ticks), Ledger())
    return Rank(
        pid=pid, job=str(key)[:NAME] if key else "", rank=trainer.role.rank, size=number_in(trainer.info.env, SIZE_VARIABLES),
        program=program_name(trainer.info), gpus=sorted({gpu.index for gpu in job.gpus}), phase=one.phase.word, states=states,
        pace=None if pace is None else replace(pace, **{name: _rounded(value) for name, value in asdict(pace).items()}),
        steps_per_s=None if step is None else _rounded(step.per_s), symptom=one.symptom, cause=one.cause,
        shares={cause: round(share, 3) for cause, share in one.shares.items() if share >= LEAST_SHARE}, lost=_rounded(job.lost),
        why=worded.why if worded else "", culprits=_takers(worded.culprits) if worded else [],
        ledger=ledger.rounded(), workers=len(job.workers),
        starving=sum(bool(worker.state.starving) for worker in job.workers), still_s=round(job.life.still_s, 1),
        waits_for=job.ranks.straggler.pid if job.ranks.straggler is not None else None, absent=list(job.ranks.absent[:MOST_RANKS]),
        identity=_identity(trainer.info), ways=words(one.facts.ways.get(trainer.pid, ()))[:NAME],
        wire=_wire(one.facts, pid), parallel=job.ranks.parallel,
    )  # fmt: skip


def _wire(facts: Facts, pid: int) -> RankWire | None:
    used = facts.wires.get(pid)
    if used is None:
        return None
    return RankWire(
        round(used.busy, 3), round(used.sent_bytes_per_s), round(used.received_bytes_per_s), round(used.retrans_per_s, 1),
        used.interface[:NAME], used.own[:NAME], used.peer[:NAME],
    )  # fmt: skip


def _identity(info: ProcInfo) -> dict[str, str]:
    """Owner of a trainer as far as known: user, Slurm job, namespace, pod and container; each at most `NAME` characters."""
    known = known_of(info)
    found = {
        "user": info.user, "slurm_job": known.get("slurm_job_id", ""), "namespace": known.get("namespace", ""),
        "pod": known.get("pod") or known.get("pod_uid", ""),
        "container": known.get("container") or known.get("container_id", "")[:SHORT_ID],
    }  # fmt: skip
    return {name: text[:NAME] for name, text in found.items() if text}


def _takers(culprits: Iterable[Culprit]) -> list[Culprit]:
    return [Culprit(one.pid, one.name[:NAME], _rounded(one.cpu_s)) for one in list(culprits)[:NAMED]]


def _gpu(gpu: GpuBoard) -> GpuRow:
    return GpuRow(
        gpu.index, gpu.text("name")[:NAME], gpu.text("uuid")[:NAME], gpu.number("util_pct"), _rounded(gpu.number("sm_active_pct"), 1),
        _whole(gpu, "mem_used_bytes"), _whole(gpu, "mem_total_bytes"), _rounded(gpu.number("power_w"), 1), gpu.number("power_limit_w"),
        gpu.number("temp_c"), _whole(gpu, "throttle_mask"), gpu.lost,
    )  # fmt: skip


def _whole(gpu: GpuBoard, name: str) -> int | None:
    value = gpu.values.get(name)
    return value if isinstance(value, int) else None


def _node(facts: Facts | None, ranks: list[Rank], board: Board) -> Node:
    if facts is None:
        return Node(board.header.cpus)
    host, procs = facts.host, [proc for job in facts.jobs for proc in (job.trainer, *job.workers)]
    return Node(
        cpus=board.header.cpus, cpu=_rounded(sum(host.busy.values()) / len(host.busy)) if host.busy else None,
        runnable=_rounded(sum(proc.runnable for proc in procs) / len(procs)) if procs else None,
        throttled=_rounded(max((job.limits.throttled_periods for job in facts.jobs), default=None)),
        psi_io=_rounded(host.psi_io), psi_memory=_rounded(host.psi_memory), net_rx_bytes_per_s=_rounded(host.net_rx_bytes_per_s, 0),
        workers=sum(rank.workers for rank in ranks), starving=sum(rank.starving for rank in ranks),
    )  # fmt: skip


def _incidents(found: list[Incident], header: Header) -> list[Episode]:
    """The newest, and before these GPUs that are still lost, however long."""
    lost = [one for one in found if stops_job(one) and one.end_ns is None]
    newest = [one for one in found[: -NEWEST - 1 : -1] if one not in lost]
    told = (episode(one, header).brief() for one in [*lost, *newest][:NEWEST])
    return [replace(one, culprits=_takers(one.culprits)) for one in told]


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
