"""The NVLink fabric: whether a GPU has joined it, what is wrong with it, and why nothing is known."""

from __future__ import annotations

import pytest

from gputop.doctor import checks as doctor
from gputop.model.fields import errors
from gputop.sources.nvml.fabric import health_of
from tests.sources.nvml_rig import Rig

SOUND = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8  # each fault: no; the configuration: nothing wrong


def standing(rig: Rig, *lines: str) -> tuple[object, object]:
    rig.set("gpus 1", *lines)
    source = rig.opened()
    rig.until(source, lambda board: "fabric_state" in board.gpus[0].values or "fabric_state" in board.gpus[0].missing)
    return rig.gpu().values.get("fabric_state"), rig.gpu().values.get("fabric_health")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("fabric_state 3", f"fabric_mask {SOUND}"), ("completed", "healthy")),
        (("fabric_state 2", f"fabric_mask {SOUND}"), ("in progress", "healthy")),
        (("fabric_state 3", f"fabric_mask {SOUND - 1}"), ("completed", "degraded bandwidth")),
        (("fabric_state 3", "fabric_mask 0"), ("completed", None)),
        (("fabric_state 3", "fabric_status 999"), ("failed: error 999 of NVML", None)),
        (("fabric_state 0",), (None, None)),
        (("error.GpuFabricInfoV NOT_SUPPORTED",), (None, None)),
    ],
)
def test_how_a_gpu_stands_in_the_fabric(rig: Rig, lines: tuple[str, ...], told: tuple[str | None, str | None]) -> None:
    assert standing(rig, *lines) == told
    assert all(rig.gpu().missing[name] for name, value in zip(("fabric_state", "fabric_health"), told, strict=True) if value is None)
    assert bool(errors(rig.gpu())) == (told[1] not in (None, "healthy"))


def test_each_part_of_the_health_has_its_words() -> None:
    assert health_of(SOUND & ~(3 << 4) | 1 << 4) == "unhealthy route"
    assert health_of(SOUND & ~(15 << 8) | 5 << 8) == "too few NVLinks"
    assert health_of(1 | 1 << 2) == "degraded bandwidth, route recovery in progress"
    assert health_of(2) == "healthy"
    assert health_of(0) is None


@pytest.mark.parametrize(
    ("line", "state", "words"),
    [
        (f"fabric_mask {SOUND}", "ok", "completed, healthy"),
        (f"gpu1.fabric_mask {SOUND - 1}", "limited", "GPU 1: completed, degraded bandwidth"),
        ("fabric_state 0", "ok", "none"),
    ],
)
def test_the_doctor_has_it(rig: Rig, line: str, state: str, words: str) -> None:
    rig.set("gpus 2", "fabric_state 3", f"fabric_mask {SOUND}", line)
    [check] = [check for check in doctor.gpu_checks("/") if check.id == "fabric"]
    assert check.state == state
    assert words in check.detail
