"""gputop: what the GPU does and what the host does to it, on one time axis."""

from gputop.system.program import __version__ as __version__
