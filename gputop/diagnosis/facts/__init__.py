"""Frames become facts: the window of the last seconds, its processes, GPUs, calls and host. Nothing here knows a cause."""
