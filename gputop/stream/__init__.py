"""One stream of frames: its origin, its restarts, its state and history, and what was kept of it."""
