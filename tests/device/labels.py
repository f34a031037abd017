"""The real jobs, and what should be said of them; apart from the jobs themselves, whose imports take seconds."""

JOBS = {
    "pictures-two-workers": "input-bound / too-few-workers",
    "pictures-main-thread": "input-bound / main-thread-preprocessing",
    "gpt": "healthy / none",
    "gpt-tiny": "busy-not-working / small-kernels",
    "gpt-checkpoints": "input-bound / pause",
    "items": "wait-heavy / sync-storm",
    "pageable": "transfer-bound / h2d-transfer",
    "pinned": "transfer-bound / h2d-transfer",
    "graphs": "healthy / none",
    "jax": "healthy / none",
}
