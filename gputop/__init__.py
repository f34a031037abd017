"""gputop: what the GPU does and what the host does to it, on one time axis."""

__version__ = "0.1.0"
