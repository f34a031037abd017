"""A run that once diverged: after each of its 120 modules somebody asks `if not torch.isfinite(out).all(): raise`.

The answer is a bool on the host, so each guard copies a byte home and waits for the stream; only then does Python prepare the next
module's launch. Preparing takes less than the kernels do, so that without the guards the host would run ahead and the GPU never idle.
Thousands of waits a second are what costs the time: a storm of synchronizations.
"""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_MODULES = 120
_FORWARD_MS, _FINITE_MS = 0.11, 0.01


def train(trainer: Trainer) -> None:
    gpu, seen = trainer.gpu, {}
    names = [f"decoder.layers.{number // 4}.{('norm', 'attention', 'gate', 'mlp')[number % 4]}" for number in range(_MODULES)]

    def is_finite() -> bool:
        gpu.launch(_FINITE_MS, blocks=8)
        gpu.copy_out(1)
        gpu.synchronize()
        return True

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        for name in names:
            gpu.launch(_FORWARD_MS)
            if not is_finite():
                raise FloatingPointError(name)
            _dispatch(name, seen)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


def _dispatch(name: str, seen: dict[str, int]) -> None:
    """What a module's hooks and its call do in Python, about 0.1 ms."""
    for shape in range(400):
        key = f"{name}[{shape}]".rpartition(".")[2]
        seen[key] = seen.get(key, 0) + shape


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
