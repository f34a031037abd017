"""What is tried where there is a real GPU: `python -m tests.device`. Nothing here runs in CI, which has none."""
