"""gputop: what the GPU does and what the host does to it, on one time axis. ``from gputop import sweep_loader`` is its Python API."""

from gputop.system.program import __version__ as __version__

TYPE_CHECKING = False  # typing's name for it, whose import takes longer than all of this
if TYPE_CHECKING:
    from gputop.experiments.sweep import sweep_loader as sweep_loader


def __getattr__(name: str) -> object:
    """`sweep_loader` on demand: ``import gputop`` stays cheap."""
    if name == "sweep_loader":
        from gputop.experiments.sweep import sweep_loader

        return sweep_loader
    raise AttributeError(f"module 'gputop' has no attribute {name!r}")
