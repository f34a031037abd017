"""The real jobs, and what should be said of them; apart from the jobs themselves, whose imports take seconds."""

JOBS = {
    "pictures-two-workers": "input-bound / too-few-workers",
    "pictures-main-thread": "input-bound / main-thread-preprocessing",
    "gpt": "healthy / none",
    "gpt-tiny": "wait-heavy / small-kernels",
    "gpt-checkpoints": "idle / pause",
    "items": "healthy / none",  # each .item() waits for as long as its kernel runs: the GPU works nine tenths of the time
    "pageable": "transfer-bound / h2d-transfer",
    "pinned": "transfer-bound / h2d-transfer",
    "graphs": "healthy / none",
    "jax": "healthy / none",
}

KEPT = {
    "pictures-two-workers": ("input-bound", "too-few-workers"), "gpt-checkpoints": ("idle", "pause"), "jax": ("healthy", "none"),
    "pinned": ("transfer-bound", "h2d-transfer"), "counts-hits": ("wait-heavy", "sync-storm"), "generates": ("wait-heavy", "small-kernels"),
    "respawns": ("input-bound", "worker-respawn"), "threads": ("input-bound", "gil-contention"),
    "unprobed-counts-hits": ("wait-heavy", "sync-storm"), "unprobed-generates": ("wait-heavy", "small-kernels"),
    "unprobed-draws-figures": ("input-bound", "main-thread-preprocessing"),
}  # fmt: skip
"""Recordings in `tests/device/data`, some of `tests.device.jobs` from the start of the process to its end, and of `tests.device.complaints`
from the first step on. Each trained for 9 or 10 s; before and after that some start and end. Those unprobed were watched without eBPF:
samples of the main thread tell of them. `story` is not here: it has three troubles."""
