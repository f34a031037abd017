"""gputop: what the GPU does and what the host does to it, on one time axis.

`watch`, `open`, `mark` and `sweep_loader` are its Python API (docs/python.md), `Error` what they raise. They are imported when they are
asked for: ``import gputop`` costs nothing, and changes nothing in the process.
"""

from gputop.system.program import __version__ as __version__

TYPE_CHECKING = False  # typing's name for it; importing typing takes longer than all of this module
if TYPE_CHECKING:
    from gputop.api.marks import mark as mark
    from gputop.api.recordings import open as open
    from gputop.api.watching import watch as watch
    from gputop.loader.sweep import sweep_loader as sweep_loader
    from gputop.system.errors import UserError

    Error = UserError

_PLACES = {
    "Error": ("gputop.system.errors", "UserError"),
    "mark": ("gputop.api.marks", "mark"),
    "open": ("gputop.api.recordings", "open"),
    "sweep_loader": ("gputop.loader.sweep", "sweep_loader"),
    "watch": ("gputop.api.watching", "watch"),
}


def __getattr__(name: str) -> object:
    """The API, on demand."""
    if name not in _PLACES:
        raise AttributeError(f"module 'gputop' has no attribute {name!r}")
    from importlib import import_module

    module, there = _PLACES[name]
    found = globals()[name] = getattr(import_module(module), there)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
