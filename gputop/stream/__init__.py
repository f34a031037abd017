"""One stream of frames: its origin, restarts, state and history, and the findings kept with it."""
