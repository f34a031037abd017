"""comm-fallback: the ranks of a training exchange data by TCP, or through the host's memory, and a faster way between them lies idle.

Costs: each step waits until the slow way has carried what InfiniBand, NVLink or shared memory would carry many times faster.
Seen: row wire x fallback (`facts.transport`). What would be slow-wire's, where all ranks are on this host and neither NVLink nor shared
memory carries their data, or some are elsewhere and an RDMA port is up, could carry twice as much, and carries a tenth at most. Or what
their GPUs' kernels leave unused, where NCCL's shared memory is mapped, PCIe carries data both ways, and NVLink between the GPUs none.
Abstains: no NCCL or RCCL is mapped; NVLink is in use, or shared memory on a host without it; the interface is faster than the ports; a port
counts neither bytes nor packets.
"""

from __future__ import annotations

from collections.abc import Iterator

from gputop.diagnosis.causes import Finding, Judge, advice, named, percent
from gputop.diagnosis.causes.slow_wire import faster_interface, look_at_connections
from gputop.diagnosis.facts.facts import PortUse
from gputop.diagnosis.facts.transport import Fallback, fallback
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix
from gputop.findings.ways import NVLINK, RDMA
from gputop.model.frame import Transport
from gputop.system.text import ranges

_OFF = ("", "0")  # values that switch a variable of NCCL off
FEW_SHM_BYTES = 64 << 20  # bytes of /dev/shm that Docker gives a container (its default)
_LOG = Fix(
    "Have NCCL print which way it takes, and why, at the next start", "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,P2P", look=True
)


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    found = fallback(job, facts)
    if found is None:  # it was one in the window before
        return Finding("its ranks send by TCP what a faster way could carry")
    if found.used is None:
        return _tell_shared(job, found, facts)
    used, port, transport = found.used, found.port, found.transport
    rate = max(used.sent_bytes_per_s, used.received_bytes_per_s)
    detail = filled("{} over TCP by {}, {:.0f} MB/s, while {}", _talkers(found, used.name), used.interface, rate / 1e6, _idle(found))
    detail += _version(transport)
    evidence = (
        percent("wire_busy_pct", used.busy, filled("of the time {} had data on the wire that the other end had not yet got", used.name)),
        Evidence("wire_sent_bytes_per_s", round(used.sent_bytes_per_s), "B/s", filled("sent by it to other ranks by {}", used.interface)),
        *(() if port is None else _of_port(port)),
        _nvlink(job, found),
        Evidence("rdma_devices_open", None if "devices" in transport.missing else float(len(transport.devices)), "",
                 "RDMA devices that the rank has open"),
        Evidence("nccl_shm_mappings", None if "shm" in transport.missing else float(transport.shm), "",
                 "memory of NCCL that it shares with other ranks (/dev/shm/nccl-*)"),
        *named.carried(job, facts),
    )  # fmt: skip
    ways = tuple(_by_rdma(found) if found.better == RDMA else _on_one_host(found))
    fixes = (*ways, *faster_interface(used, facts), *advice.fixes(advice.computing(job, facts).exchanged), _LOG, look_at_connections(job))
    return Finding(detail, evidence, fixes, victims=tuple(sorted(job.ranks.kin or {job.trainer.pid})))


def _tell_shared(job: WalkedJob, found: Fallback, facts: WalkedFacts) -> Finding:
    transport, rate = found.transport, found.pcie_bytes_per_s or 0.0
    talk = _talkers(found, job.trainer.role.label)
    detail = filled("{} through the host's memory, {:.0f} MB/s over PCIe, while {}", talk, rate / 1e6, _idle(found))
    evidence = (
        Evidence("pcie_bytes_per_s", round(rate), "B/s", "over PCIe, to its GPUs and back"),
        _nvlink(job, found),
        Evidence("nccl_shm_mappings", float(transport.shm), "", "memory of NCCL that it shares with other ranks (/dev/shm/nccl-*)"),
        *named.carried(job, facts),
    )
    looks = (_LOG, Fix("See which GPUs may read each other's memory", "nvidia-smi topo -p2p r", look=True))
    return Finding(detail + _version(transport), evidence, (*_on_one_host(found), *looks), victims=tuple(sorted(job.ranks.kin)))


def _nvlink(job: WalkedJob, found: Fallback) -> Evidence:
    carried = sum(gpu.nvlink_bytes_per_s or 0.0 for gpu in job.gpus)
    return Evidence("nvlink_bytes_per_s", round(carried) if found.better == NVLINK else None, "B/s", "carried by NVLink between its GPUs")


def _version(transport: Transport) -> str:
    return filled(" ({} {})", transport.library, transport.version) if transport.version else ""


def _of_port(port: PortUse) -> tuple[Evidence, ...]:
    carried, line = port.bytes_per_s, port.line_bytes_per_s
    return (
        Evidence("idle_way_bytes_per_s", None if carried is None else round(carried), "B/s", filled("carried by {} meanwhile", port.name)),
        Evidence("idle_way_line_bytes_per_s", None if line is None else round(line), "B/s", "that it can carry"),
    )


def _talkers(found: Fallback, name: str) -> str:
    """Words for the ranks that take the slow way; ``name``: of one of them."""
    if not found.numbers:
        return filled("{} talks", name)
    if len(found.numbers) == 1:
        return filled("rank {:d} talks", found.numbers[0])
    return filled("ranks {} talk", ranges(found.numbers))


def _idle(found: Fallback) -> str:
    """Words for the way that lies idle."""
    if found.port is not None:
        return filled("{} idles, which carries {:.0f} Gbit/s", found.port.name, (found.port.line_bytes_per_s or 0.0) / 125e6)
    if found.better == NVLINK:
        return "NVLink between its GPUs idles"
    return "all of them are on this host and share no memory"


def _by_rdma(found: Fallback) -> Iterator[Fix]:
    """What brings the exchange to the idle port, by what keeps it from there."""
    transport, port = found.transport, found.port
    device = "" if port is None else port.device
    forbidden = [name for name in ("NCCL_IB_DISABLE", "RCCL_IB_DISABLE") if transport.variables.get(name, "0") not in _OFF]
    yield from (_unset(name, transport, "it keeps the ranks from InfiniBand and RoCE") for name in forbidden)
    net = transport.variables.get("NCCL_NET", "")
    if net.lower() == "socket":
        yield _unset("NCCL_NET", transport, "it asks for sockets")
    chosen = transport.variables.get("NCCL_IB_HCA", "")
    if chosen and not _may_use(chosen, device):
        yield Fix(filled("Let NCCL use {}: NCCL_IB_HCA names other devices", device), filled("export NCCL_IB_HCA={:word}", device))
    if transport.lacks_devices:
        yield Fix(
            "Give the container the RDMA devices, and memory that may be locked; in Kubernetes by the RDMA device plugin",
            "docker run --device=/dev/infiniband --ulimit memlock=-1 --network=host ...",
        )
    elif not forbidden and not transport.devices and "devices" not in transport.missing:
        yield Fix(
            "Use the backend NCCL with its RDMA transport: the ranks have no RDMA device open. gloo always sends by TCP, and NCCL does "
            "where libibverbs.so.1 or its plug-in is missing",
            'torch.distributed.init_process_group("nccl")',
        )


def _on_one_host(found: Fallback) -> Iterator[Fix]:
    """What brings the exchange to NVLink, PCIe or shared memory."""
    transport = found.transport
    for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "RCCL_P2P_DISABLE"):
        if transport.variables.get(name, "0") not in _OFF:
            yield _unset(name, transport, "it keeps ranks of one host from each other's memory")
    if transport.variables.get("NCCL_P2P_LEVEL", "") in ("LOC", "0"):
        yield _unset("NCCL_P2P_LEVEL", transport, "it keeps GPUs from each other's memory")
    if found.used is not None and transport.shm_bytes is not None and transport.shm_bytes <= FEW_SHM_BYTES:
        text = filled("Give the container more shared memory than {:.0f} MB, or the host's", transport.shm_bytes / 1e6)
        yield Fix(text, "docker run --ipc=host --shm-size=8g ...")
    yield Fix(
        "Let all ranks of the host run in one container, or share its IPC and PID namespaces; and use the backend NCCL, for gloo always "
        "sends by TCP",
        "docker run --ipc=host --pid=host --gpus=all ...",
    )


def _unset(name: str, transport: Transport, why: str) -> Fix:
    if name in transport.configured:
        return Fix(filled("Take {} out of /etc/nccl.conf: {}", name, why), filled("sudo sed -i /^{:own}/d /etc/nccl.conf", name))
    return Fix(filled("Unset {}: {}", name, why), filled("unset {:own}", name))


def _may_use(chosen: str, device: str) -> bool:
    """True if NCCL_IB_HCA (``mlx5``, ``=mlx5_0:1,mlx5_1``, ``^mlx5_2``) allows a device."""
    exact, names = chosen.lstrip("^").startswith("="), chosen.lstrip("^=").split(",")
    matches = any((device == name.partition(":")[0]) if exact else device.startswith(name.partition(":")[0]) for name in names if name)
    return matches != chosen.startswith("^")


JUDGE = Judge("comm-fallback", "comm-bound", _tell, rows=(("wire", "fallback"),))
