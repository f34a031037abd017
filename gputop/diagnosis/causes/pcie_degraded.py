"""pcie-degraded: copies take longer because the GPU's PCIe link is narrower, or of an older generation, than GPU and slot allow.

Costs: a link that was trained down, by dust, a bent riser or a BIOS setting, carries a half or a sixteenth of the bytes, without any Xid.
Seen: row copy x narrow: of the time in copies (h2d-transfer) the part in which the bytes occupy the link, less what they would need on the
full link (`gpuside.narrowed`). Lanes count at any time, the generation only by its best reading of the last half minute: it falls while a
link rests. Packets that the link sent again (replays) are shown beside it.
Abstains: hardly any copies, or copies that delay nobody; a link that is all that GPU and slot allow; copies that go over C2C (Grace).
"""

from __future__ import annotations

from collections.abc import Iterator

from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.causes.h2d_transfer import spent
from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.graph.gpuside import copied, narrowest, traffic
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix


def _tell(job: WalkedJob, _facts: WalkedFacts) -> Finding:
    gpu = narrowest(job)
    if gpu is None:  # it was narrow in the window before
        return Finding(filled("its GPU's PCIe link was narrower than it can be; {}", spent(job)), (), (), (), (job.trainer.pid,))
    link, full = gpu.link_bytes_per_s or 0.0, gpu.full_link_bytes_per_s or 0.0
    evidence = (
        Evidence("pcie_lanes", gpu.pcie_width, "", filled("PCIe lanes of GPU {}, of {:.0f}", gpu.index, gpu.pcie_width_max or 0)),
        Evidence("pcie_generation", gpu.best_gen, "", filled("its generation at best, of {:.0f}", gpu.pcie_gen_max or 0)),
        Evidence("link_bytes_per_s", round(link), "B/s", filled("that it carries one way, of {:.0f} GB/s", full / 1e9)),
        Evidence("copied_bytes_per_s", round(max(traffic(job), copied(job))) or None, "B/s", "over it"),
        Evidence("pcie_replays_per_s", gpu.pcie_replays_per_s, "/s", "packets that the link sent again"),
    )
    detail = filled("{}: {:.1f} of {:.1f} GB/s; {}", told(gpu), link / 1e9, full / 1e9, spent(job))
    return Finding(detail, evidence, tuple(_fixes(gpu)), (), (job.trainer.pid,))


def told(gpu: GpuFacts) -> str:
    """Words for how narrow a GPU's link is: ``GPU 0 has 8 of its 16 PCIe lanes, at generation 3 of 5``."""
    has, most = int(gpu.pcie_width or 0), int(gpu.pcie_width_max or 0)
    gen, best = int(gpu.best_gen or 0), int(gpu.pcie_gen_max or 0)
    at = filled("at generation {} of {}", gen, best) if gen < best else ""
    if has >= most:
        return filled("GPU {} has its PCIe link {}", gpu.index, at)
    return filled("GPU {} has {} of its {} PCIe lanes{}{}", gpu.index, has, most, ", " if at else "", at)


def _fixes(gpu: GpuFacts) -> Iterator[Fix]:
    if int(gpu.pcie_width or 0) < int(gpu.pcie_width_max or 0):
        yield Fix(filled("Seat the card again, in another slot, without a riser ({}); a reset or reboot trains its link anew", told(gpu)))
    else:
        yield Fix("Set the slot's PCIe speed to automatic in the BIOS, and update it; a reboot trains the link anew")
    if (gpu.pcie_replays_per_s or 0.0) >= policy.RESENT_PER_S:
        yield Fix("Replace the riser or cable: the link sends packets again and again")
    ask = "nvidia-smi -i {:d} --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max --format=csv"
    yield Fix("See its link while it copies: at rest the generation falls by itself", filled(ask, gpu.index), look=True)
    yield Fix("See whether the system reports errors of the bus", "sudo dmesg | grep -iE 'aer|pcieport' | tail -20", look=True)


JUDGE = Judge("pcie-degraded", "transfer-bound", _tell, rows=(("copy", "narrow"),))
