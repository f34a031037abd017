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
