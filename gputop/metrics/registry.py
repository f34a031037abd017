"""Every metric in a line: name, type, unit, labels, level, what it is, and how it is made of the board and the diagnosis.

Units are base units (seconds, bytes, ratios of 0 to 1). What is not measured has no sample.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from gputop.diagnosis import Engine
from gputop.diagnosis.symptoms import Standing
from gputop.metrics.totals import OTHER, Totals, Trainer, label, most_first
from gputop.model.board import Board, GpuBoard
from gputop.model.frame import RdmaPort
from gputop.model.identity import SHORT_ID, known_of
from gputop.model.roles import SIZE_VARIABLES, number_in, program_name
from gputop.model.serving import Serving, ServingNow
from gputop.system.program import DOCUMENTATION

PREFIX = "gputop_"
LEVELS = NODE, GPU, TRAINER = "node", "gpu", "trainer"  # each holds those before it
GAUGE, COUNTER = "gauge", "counter"
MOST_PORTS = 32  # RDMA ports, and network interfaces, that are exported: 15 series each
MOST_SERIES = 2500  # of a node, whatever happens on it
_CAUSE = f"cause ({DOCUMENTATION}causes/)"  # in the help of what has it as a label: what the causes mean
MOST_MODELS = 32  # of inference servers: 16 series each
THROTTLES = (("thermal", 0x60), ("power_brake", 0x80), ("hw_slowdown", 0x8), ("power_cap", 0x4), ("other", 0x712))
"""(reason, bits of nvmlClocksEventReasons)"""


class Sample(NamedTuple):
    """One series now."""

    labels: tuple[str, ...]  # values, in the order of `Metric.labels`
    value: float
    created_s: float | None = None  # of a counter that may restart: Unix time of its begin


class Moment(Struct):
    """State that a scrape reads."""

    board: Board
    engine: Engine
    totals: Totals
    silent: bool = False  # the collector has sent nothing for a while: its last values are not exported as current
    with_users: bool = True
    dropped: int = 0  # series beyond `MOST_SERIES`


class Metric(Struct, frozen=True):
    """One family of series."""

    name: str  # without `PREFIX`
    kind: str
    unit: str  # as OpenTelemetry writes it (UCUM); empty: it counts, or is yes or no
    labels: tuple[str, ...]
    level: str
    help: str
    make: Callable[[Moment], Iterable[Sample]]
    otel: str = ""  # its name in OpenTelemetry's conventions of hardware; empty: `otel_name` makes it

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        return PREFIX + self.name

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry, which Prometheus' rules turn into `full_name`."""
        stem = self.name.removesuffix("_total").removesuffix(f"_{SUFFIXES.get(self.unit, '')}")
        return self.otel or PREFIX.replace("_", ".") + stem.replace("_", ".", 1)


SUFFIXES = {"s": "seconds", "By": "bytes", "1": "ratio", "W": "watts", "J": "joules", "Hz": "hertz", "Cel": "celsius",
            "By/s": "bytes_per_second"}  # fmt: skip
"""Unit -> how a name in Prometheus ends, before ``_total``."""


def _gpus(at: Moment, of: Callable[[GpuBoard], Iterable[tuple[tuple[str, ...], float | None]]]) -> Iterator[Sample]:
    for index in sorted(at.board.gpus):
        gpu = at.board.gpus[index]
        own = str(index), label(gpu.text("uuid"))
        yield from (Sample((*own, *labels), value) for labels, value in of(gpu) if value is not None)


def _field(name: str, factor: float = 1.0) -> Callable[[Moment], Iterable[Sample]]:
    """A field of the GPU's board, times ``factor``."""

    def of(gpu: GpuBoard) -> Iterable[tuple[tuple[str, ...], float | None]]:
        value = gpu.number(name)
        return [((), None if value is None else value * factor)]

    return lambda at: _gpus(at, of)


def _throttled(gpu: GpuBoard) -> Iterator[tuple[tuple[str, ...], float | None]]:
    mask = gpu.number("throttle_mask")
    if mask is not None:
        yield from (((reason,), float(bool(int(mask) & bits))) for reason, bits in THROTTLES)


def _living(at: Moment, of: Callable[[Standing], float | None]) -> Iterator[Sample]:
    for one in at.totals.trainers.values():
        value = of(one.standing) if one.standing is not None and one.name != OTHER else None
        if value is not None:
            yield Sample((one.name,), float(value))


def _words(at: Moment, of: Callable[[Trainer], dict[str, float]]) -> Iterator[Sample]:
    """A counter for each word."""
    for one in at.totals.trainers.values():
        yield from (Sample((one.name, word), round(seconds, 4), one.created_ns / 1e9) for word, seconds in of(one).items())


def _straggles(at: Moment) -> Iterator[Sample]:
    slow = (one.job.ranks.straggler for one in at.engine.standing.values() if one.cause == "straggler-rank")
    late = {trainer.pid for trainer in slow if trainer is not None}
    return _living(at, lambda one: None if len(one.job.ranks.kin) < 2 else one.job.trainer.pid in late)


def _verdicts(at: Moment) -> Iterator[Sample]:
    for one in at.totals.trainers.values():
        if one.standing is not None and one.name != OTHER:
            yield Sample((one.name, one.standing.symptom, one.standing.cause), 1.0)


def _steps_per_s(one: Standing) -> float | None:
    return None if one.job.step is None else one.job.step.per_s


def _node_info(at: Moment) -> Iterator[Sample]:
    header, nvml = at.board.header, at.board.sources.get("nvml")
    detail = nvml.detail if nvml is not None else {}
    texts = header.host, header.gputop, header.kernel, detail.get("driver", ""), detail.get("cuda", "")
    yield Sample((*map(label, texts), "true" if header.simulated else "false"), 1.0)


def _sources(at: Moment) -> Iterator[Sample]:
    yield Sample(("collector", "unavailable" if at.silent else "ok"), 1.0)
    yield from (Sample((label(one.name), label(one.state)), 1.0) for one in at.board.sources.values())


def _own_cpu(at: Moment) -> Iterator[Sample]:
    if at.board.cost is not None:
        yield Sample(("collector",), at.board.cost.cpu_ns / 1e9)
    yield Sample(("exporter",), time.process_time())


def _gpu_info(at: Moment) -> Iterator[Sample]:
    return _gpus(at, lambda gpu: [((label(gpu.text("name")), label(gpu.text("pci_bus_id"))), 1.0)])


_SLOWED = (("power_cap", "power"), ("sync_boost", "sync_boost"), ("thermal", "heat"), ("hw_thermal", "hw_heat"), ("power_brake", "brake"))


def _throttled_s(gpu: GpuBoard) -> list[tuple[tuple[str, ...], float | None]]:
    """Seconds for which each reason has held a GPU's clocks down, by the driver's counters; no value for what it does not count."""
    counted = ((word, gpu.number(f"slowed_{name}_ns")) for word, name in _SLOWED)
    return [((word,), None if ns is None else ns / 1e9) for word, ns in counted]


def _xids(at: Moment) -> Iterator[Sample]:
    """Xid counts of each GPU; no value if the driver's events are not read."""

    def of(gpu: GpuBoard) -> Iterable[tuple[tuple[str, ...], float | None]]:
        is_known = "xid" in gpu.values or ("needs_reset" in gpu.values and "xid" not in gpu.missing)
        return [((), float(at.totals.xids[gpu.index]) if is_known else None)]

    return _gpus(at, of)


def _driver_errors(at: Moment) -> Iterator[Sample]:
    """Errors in the kernel's log; no value where it is not read."""
    counts: Counter[tuple[str, ...]] = Counter()
    for one in at.board.driver_errors.values():
        counts[label(one.kind), label(one.device), str(one.number), "" if one.fatal is None else str(one.fatal).lower()] += one.times
    yield from (Sample(labels, float(count)) for labels, count in sorted(counts.items()))


def _lost(at: Moment) -> Iterator[Sample]:
    lost = {gpu.index for gpu in at.engine.facts.gpus if gpu.loss is not None} if at.engine.facts is not None else frozenset[int]()
    return _gpus(at, lambda gpu: [((), 1.0 if gpu.index in lost else None if gpu.lost is None else float(gpu.lost))])


def _incidents(at: Moment) -> Iterator[Sample]:
    lasting = Counter((label(one.cause), label(one.severity)) for one in at.engine.incidents if one.end_ns is None)
    yield from (Sample(labels, float(count)) for labels, count in sorted(lasting.items()))


def _trainer_info(at: Moment) -> Iterator[Sample]:
    for one in at.totals.trainers.values():
        if one.standing is None or one.name == OTHER:
            continue
        trainer = one.standing.job.trainer
        info, rank = trainer.info, trainer.role.rank
        size, known = number_in(info.env, SIZE_VARIABLES), known_of(info)
        texts = (
            one.name, program_name(info), "" if rank is None else str(rank), "" if size is None else str(size), ",".join(sorted(one.gpus)),
            info.user if at.with_users else "", known.get("slurm_job_id", ""), known.get("namespace", ""),
            known.get("pod") or known.get("pod_uid", ""), known.get("container") or known.get("container_id", "")[:SHORT_ID],
        )  # fmt: skip
        yield Sample(tuple(map(label, texts)), 1.0)


def _ports(at: Moment, of: Callable[[RdmaPort], Iterable[tuple[tuple[str, ...], float | None]]]) -> Iterator[Sample]:
    ports = at.board.host.get("rdma")
    for port in ports[:MOST_PORTS] if isinstance(ports, list) else ():
        device, _, number = port.name.partition("/")
        own = label(device), label(number)
        yield from (Sample((*own, *labels), float(value)) for labels, value in of(port) if value is not None)


def _count_of(name: str, factor: float = 1.0) -> Callable[[Moment], Iterable[Sample]]:
    """A field of an RDMA port, times ``factor``."""

    def of(port: RdmaPort) -> Iterable[tuple[tuple[str, ...], float | None]]:
        value = getattr(port, name)
        return [((), None if value is None else value * factor)]

    return lambda at: _ports(at, of)


def _counts_of(*names: str) -> Callable[[Moment], Iterable[Sample]]:
    """Several fields of an RDMA port, each with its name as the last label."""
    return lambda at: _ports(at, lambda port: [((name,), getattr(port, name)) for name in names])


def _interfaces(at: Moment) -> Iterator[Sample]:
    nets = at.board.host.get("nets")
    known = [net for net in nets if net.flaps is not None] if isinstance(nets, list) else []
    yield from (Sample((label(net.name),), float(net.flaps)) for net in known[:MOST_PORTS])


_OF_PORT = ("device", "port")
def _servers(at: Moment, of: Callable[[ServingNow, Serving], float | None], *more: str) -> Iterator[Sample]:
    """A value of each model of each inference server."""
    now = {(one.pid, one.address, one.engine, one.model): one for one in at.engine.facts.servings} if at.engine.facts is not None else {}
    named = set[tuple[str, ...]]()
    for key, one in sorted(now.items())[:MOST_MODELS]:
        texts = one.address, one.engine, one.model, one.family
        labels = (*map(label, texts), *more)
        page = at.board.servings.get(key)
        if page is None or labels in named:
            continue  # two servers in networks of their own may have the same address
        named.add(labels)
        if (value := of(one, page)) is not None:
            yield Sample(labels, float(value))


def _counted(name: str) -> Callable[[Moment], Iterable[Sample]]:
    """A counter of the server's own."""
    return lambda at: _servers(at, lambda _, page: getattr(page, name))


def _now(name: str, factor: float = 1.0) -> Callable[[Moment], Iterable[Sample]]:
    """A gauge of a server."""
    return lambda at: _servers(at, lambda now, _: None if (value := getattr(now, name)) is None else factor * value)


def _quantiles(name: str) -> Callable[[Moment], Iterable[Sample]]:
    """Median and 99th percentile of a server's times."""

    def made(at: Moment) -> Iterator[Sample]:
        for share in (50, 99):
            yield from _servers(at, lambda now, _, field=f"{name}_p{share}_s": getattr(now, field), str(share / 100))  # type: ignore[misc]

    return made


_OF_GPU, _OF_TRAINER = ("gpu", "uuid"), ("trainer",)
_OF_SERVER = ("server", "engine", "model", "family")
_INFO = ("trainer", "program", "rank", "world_size", "gpus", "user", "slurm_job_id", "namespace", "pod", "container")

_DROPPED = Metric("self_series_dropped", GAUGE, "", (), NODE, f"Series beyond {MOST_SERIES}, which are left out.",
                  lambda at: [Sample((), at.dropped)])  # fmt: skip

METRICS = (
    Metric("node_info", GAUGE, "", ("host", "version", "kernel", "driver", "cuda", "simulated"), NODE,
           "1; the node and its versions.", _node_info),
    Metric("node_up_sources", GAUGE, "", ("source", "state"), NODE,
           "1 for the state of each source: ok, partial, off or unavailable.", _sources),
    Metric("self_cpu_seconds_total", COUNTER, "s", ("part",), NODE, "CPU time that gputop itself took.", _own_cpu),
    Metric("beat_late_seconds", GAUGE, "s", (), NODE,
           "Longest delay of the collector's beat in the last 15 to 30 s.", lambda at: [Sample((), at.totals.late_s)]),
    Metric("frames_dropped_total", COUNTER, "", (), NODE,
           "Readings that were skipped or not taken.", lambda at: [Sample((), at.totals.dropped)]),
    Metric("gpu_info", GAUGE, "", (*_OF_GPU, "name", "pci_bus_id"), GPU, "1; the GPU's name and place.", _gpu_info),
    Metric("gpu_utilization_ratio", GAUGE, "1", _OF_GPU, GPU,
           "Share of time in which a kernel ran or data was copied.", _field("util_pct", 0.01), "hw.gpu.utilization"),
    Metric("gpu_gr_active_ratio", GAUGE, "1", _OF_GPU, GPU, "Share of time in which any kernel ran.", _field("gr_active_pct", 0.01)),
    Metric("gpu_sm_active_ratio", GAUGE, "1", _OF_GPU, GPU, "Share of SMs with a warp on them.", _field("sm_active_pct", 0.01)),
    Metric("gpu_tensor_active_ratio", GAUGE, "1", _OF_GPU, GPU, "Share of time of the tensor cores.", _field("tensor_active_pct", 0.01)),
    Metric("gpu_dram_active_ratio", GAUGE, "1", _OF_GPU, GPU, "Share of the memory's bandwidth.", _field("dram_active_pct", 0.01)),
    Metric("gpu_memory_used_bytes", GAUGE, "By", _OF_GPU, GPU, "Memory in use.", _field("mem_used_bytes"), "hw.gpu.memory.usage"),
    Metric("gpu_memory_total_bytes", GAUGE, "By", _OF_GPU, GPU, "Memory it has.", _field("mem_total_bytes"), "hw.gpu.memory.limit"),
    Metric("gpu_memory_shared", GAUGE, "", _OF_GPU, GPU,
           "1 for a GPU without memory of its own: the two before are the host's.", _field("mem_shared")),
    Metric("gpu_power_watts", GAUGE, "W", _OF_GPU, GPU, "Power of the board.", _field("power_w"), "hw.power"),
    Metric("gpu_energy_joules_total", COUNTER, "J", _OF_GPU, GPU, "Energy since the driver was loaded.", _field("energy_mj", 0.001),
           "hw.energy"),
    Metric("gpu_temperature_celsius", GAUGE, "Cel", _OF_GPU, GPU, "Temperature.", _field("temp_c"), "hw.temperature"),
    Metric("gpu_sm_clock_hertz", GAUGE, "Hz", _OF_GPU, GPU, "Clock of the SMs.", _field("sm_clock_mhz", 1e6)),
    Metric("gpu_throttled", GAUGE, "", (*_OF_GPU, "reason"), GPU,
           "1 while the reason holds the clocks down.", lambda at: _gpus(at, _throttled)),
    Metric("gpu_pcie_receive_bytes_total", COUNTER, "By", _OF_GPU, GPU, "Bytes from the host.", _field("pcie_rx_bytes"), "hw.gpu.io"),
    Metric("gpu_pcie_transmit_bytes_total", COUNTER, "By", _OF_GPU, GPU, "Bytes to the host.", _field("pcie_tx_bytes"), "hw.gpu.io"),
    Metric("gpu_nvlink_receive_bytes_total", COUNTER, "By", _OF_GPU, GPU, "Bytes from other GPUs.", _field("nvlink_rx_bytes")),
    Metric("gpu_nvlink_transmit_bytes_total", COUNTER, "By", _OF_GPU, GPU, "Bytes to other GPUs.", _field("nvlink_tx_bytes")),
    Metric("gpu_c2c_receive_bytes_total", COUNTER, "By", _OF_GPU, GPU, "Bytes from a Grace CPU over C2C.", _field("c2c_rx_bytes")),
    Metric("gpu_c2c_transmit_bytes_total", COUNTER, "By", _OF_GPU, GPU, "Bytes to a Grace CPU over C2C.", _field("c2c_tx_bytes")),
    Metric("gpu_pcie_replays_total", COUNTER, "", _OF_GPU, GPU, "Packets that its PCIe link sent again.", _field("pcie_replays")),
    Metric("gpu_pcie_width_lanes", GAUGE, "", _OF_GPU, GPU, "PCIe lanes now.", _field("pcie_width")),
    Metric("gpu_pcie_width_max_lanes", GAUGE, "", _OF_GPU, GPU, "PCIe lanes that GPU and slot have.", _field("pcie_width_max")),
    Metric("gpu_nvlink_replays_total", COUNTER, "", _OF_GPU, GPU, "Packets that its NVLinks sent again.", _field("nvlink_replays")),
    Metric("gpu_nvlink_recoveries_total", COUNTER, "", _OF_GPU, GPU, "Times that its NVLinks were trained again.",
           _field("nvlink_recoveries")),
    Metric("gpu_nvlink_crc_errors_total", COUNTER, "", _OF_GPU, GPU, "Packets with a wrong checksum on its NVLinks.",
           _field("nvlink_crc_errors")),
    Metric("gpu_throttled_seconds_total", COUNTER, "s", (*_OF_GPU, "reason"), GPU, "Time for which the reason has held the clocks down.",
           lambda at: _gpus(at, _throttled_s)),
    Metric("gpu_recovery_action", GAUGE, "", _OF_GPU, GPU,
           "What the driver asks for: 0 nothing, 1 a reset, 2 a reboot, 3 to drain it, 4 to drain and reset it.",
           _field("recovery_action")),
    Metric("gpu_ecc_errors_total", COUNTER, "", (*_OF_GPU, "kind"), GPU, "ECC errors since the driver was loaded.",
           lambda at: _gpus(at, lambda gpu: [((k,), gpu.number(f"ecc_{k}")) for k in ("corrected", "uncorrected")]), "hw.errors"),
    Metric("gpu_xid_errors_total", COUNTER, "", _OF_GPU, GPU,
           "Xid errors since gputop began to watch; the same one again and again counts once.", _xids),
    Metric("driver_errors_total", COUNTER, "", ("kind", "device", "number", "fatal"), GPU,
           "Xids of GPUs and SXids of NVSwitches in the kernel's log since the boot, by PCI address.", _driver_errors),
    Metric("gpu_lost", GAUGE, "", _OF_GPU, GPU,
           "1 while the GPU is lost: off the bus, in need of a reset, or silent; 0 if the driver reports that it is not.",
           _lost),
    Metric("rdma_port_info", GAUGE, "", (*_OF_PORT, "driver", "link", "interface"), GPU,
           "1; a port of an RDMA device: its driver, InfiniBand or Ethernet (RoCE), and the network interface on the same port.",
           lambda at: _ports(at, lambda port: [((label(port.driver), label(port.link), label(port.interface)), 1.0)])),
    Metric("rdma_port_up", GAUGE, "", _OF_PORT, GPU, "1 while the port is ACTIVE.",
           lambda at: _ports(at, lambda port: [((), float(port.is_up) if port.state else None)])),
    Metric("rdma_link_rate_bytes_per_second", GAUGE, "By/s", _OF_PORT, GPU, "What the link carries one way.",
           _count_of("rate_mbit", 125_000.0)),
    Metric("rdma_receive_bytes_total", COUNTER, "By", _OF_PORT, GPU, "Bytes received by RDMA.", _count_of("rx_bytes")),
    Metric("rdma_transmit_bytes_total", COUNTER, "By", _OF_PORT, GPU, "Bytes sent by RDMA.", _count_of("tx_bytes")),
    Metric("rdma_congestion_packets_total", COUNTER, "", (*_OF_PORT, "kind"), GPU,
           "Packets marked by a switch on their way (ecn_marked); congestion notifications sent and received (RoCE).",
           _counts_of("ecn_marked", "cnp_sent", "cnp_received")),
    Metric("rdma_transmit_wait_ticks_total", COUNTER, "", _OF_PORT, GPU,
           "Ticks, of the device's own length, in which data waited for room at the other end (InfiniBand).", _count_of("tx_wait_ticks")),
    Metric("rdma_retransmits_total", COUNTER, "", _OF_PORT, GPU, "Times that the port sent again.", _count_of("retrans")),
    Metric("rdma_errors_total", COUNTER, "", (*_OF_PORT, "kind"), GPU, "Packets received with an error, and packets dropped.",
           _counts_of("errors", "discards")),
    Metric("rdma_link_flaps_total", COUNTER, "", (*_OF_PORT, "kind"), GPU,
           "Times that the link was lost (flaps), or came back by itself (recoveries).", _counts_of("flaps", "recoveries")),
    Metric("network_link_flaps_total", COUNTER, "", ("interface",), GPU, "Times that a network interface lost its link.", _interfaces),
    Metric("incidents", GAUGE, "", ("cause", "severity"), GPU, f"Incidents that last, by severity and {_CAUSE}.", _incidents),
    Metric("trainer_info", GAUGE, "", _INFO, TRAINER, "1; the trainer's owner. Join it by instance and trainer.", _trainer_info),
    Metric("trainer_gpu_lost_seconds_total", COUNTER, "s", ("trainer", "cause"), TRAINER,
           f"GPU seconds that a trainer did not use, by {_CAUSE}; as the ledger of `gputop explain`.",
           lambda at: _words(at, lambda one: one.lost_s)),
    Metric("trainer_gpu_lost_unsure_seconds", GAUGE, "s", _OF_TRAINER, TRAINER,
           "GPU seconds lost that the counter does not have yet: nothing of the trainer moves, and for a minute that may become a hang.",
           lambda at: [Sample((one.name,), round(one.unsure_s, 4)) for one in at.totals.trainers.values() if one.standing is not None]),
    Metric("trainer_gpu_seconds_total", COUNTER, "s", _OF_TRAINER, TRAINER, "GPU seconds that a trainer had, used or lost.",
           lambda at: [Sample((one.name,), round(one.gpu_s, 4), one.created_ns / 1e9) for one in at.totals.trainers.values()]),
    Metric("trainer_steps_per_second", GAUGE, "", _OF_TRAINER, TRAINER, "Its pace.", lambda at: _living(at, _steps_per_s)),
    Metric("trainer_straggler", GAUGE, "", _OF_TRAINER, TRAINER, "1 for the rank that the others of its job wait for.", _straggles),
    Metric("trainer_hung", GAUGE, "", _OF_TRAINER, TRAINER,
           "1 while it stands still, waiting for another process of its job.", lambda at: _living(at, lambda one: one.hangs)),
    Metric("trainer_verdict_info", GAUGE, "", ("trainer", "symptom", "cause"), TRAINER,
           f"1; its verdict now: symptom and {_CAUSE}.", _verdicts),
    Metric("trainer_workers", GAUGE, "", _OF_TRAINER, TRAINER, "Its loader workers.",
           lambda at: _living(at, lambda one: len(one.job.workers))),
    Metric("trainer_workers_starving", GAUGE, "", _OF_TRAINER, TRAINER, "Workers that starve.",
           lambda at: _living(at, lambda one: sum(bool(worker.state.starving) for worker in one.job.workers))),
    Metric("trainer_state_seconds_total", COUNTER, "s", ("trainer", "state"), TRAINER,
           "Time of its main thread in each state.", lambda at: _words(at, lambda one: one.states_s)),
    Metric("worker_state_seconds_total", COUNTER, "s", ("trainer", "state"), TRAINER,
           "Time of all its workers in each state.", lambda at: _words(at, lambda one: one.workers_s)),
    Metric("serving_requests_running", GAUGE, "", _OF_SERVER, TRAINER, "Requests that an inference server works on.", _now("running")),
    Metric("serving_requests_waiting", GAUGE, "", _OF_SERVER, TRAINER, "Requests in its queue.", _now("waiting")),
    Metric("serving_requests_finished_total", COUNTER, "", _OF_SERVER, TRAINER, "Requests that ended.", _counted("finished")),
    Metric("serving_kv_used_ratio", GAUGE, "1", _OF_SERVER, TRAINER, "Memory for keys and values in use.", _now("kv_used_pct", 0.01)),
    Metric("serving_preemptions_total", COUNTER, "", _OF_SERVER, TRAINER, "Requests that lost this memory.", _counted("preemptions")),
    Metric("serving_prompt_tokens_total", COUNTER, "", _OF_SERVER, TRAINER, "Tokens of prompts.", _counted("prompt_tokens")),
    Metric("serving_generated_tokens_total", COUNTER, "", _OF_SERVER, TRAINER, "Tokens generated.", _counted("generated_tokens")),
    Metric("serving_first_token_seconds", GAUGE, "s", (*_OF_SERVER, "quantile"), TRAINER,
           "Time to the first token, of requests in the last 5 s; OpenTelemetry has the server's histogram.", _quantiles("first_token")),
    Metric("serving_per_token_seconds", GAUGE, "s", (*_OF_SERVER, "quantile"), TRAINER,
           "Time from one token to the next, likewise.", _quantiles("per_token")),
    Metric("serving_queued_seconds", GAUGE, "s", (*_OF_SERVER, "quantile"), TRAINER, "Time in the queue, likewise.", _quantiles("queued")),
    Metric("culprit_cpu_seconds_total", COUNTER, "s", ("name", "cause"), TRAINER,
           "CPU time that a program took from trainers, of the ten that took most.",
           lambda at: [Sample((name, cause), round(cpu_s, 4)) for name, cause, cpu_s in most_first(at.totals.culprits)]),
    _DROPPED,
)  # fmt: skip


def collect(at: Moment, level: str = TRAINER, room: int = MOST_SERIES) -> Iterator[tuple[Metric, list[Sample]]]:
    """All families up to a level that have samples; at most ``room`` samples in all."""
    room = max(0, room - 1)  # one is left for the count of those left out, which comes last, wherever it stands
    levels = LEVELS[: LEVELS.index(level) + 1]
    for metric in (*(one for one in METRICS if one is not _DROPPED), _DROPPED):
        if metric.level not in levels or (at.silent and metric.level != NODE):
            continue
        samples = list(metric.make(at))
        if metric is not _DROPPED:
            at.dropped += max(0, len(samples) - room)
            samples = samples[:room]
            room -= len(samples)
        if samples:
            yield metric, samples
