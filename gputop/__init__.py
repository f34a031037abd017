"""gputop: what the GPU does and what the host does to it, on one time axis."""

import sys
from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal

__version__ = "0.1.0"


class EndsAtOnce:
    """While we import, Ctrl-C ends us without a word: a KeyboardInterrupt there is a traceback, or a crash where it meets C."""

    def __enter__(self) -> None:
        """Not where somebody else has decided what Ctrl-C does, as `&` and nohup do."""
        self._ours = getsignal(SIGINT) is default_int_handler
        if self._ours:
            signal(SIGINT, SIG_DFL)

    def __exit__(self, *_: object) -> None:
        """As it was."""
        if self._ours:
            signal(SIGINT, default_int_handler)


if sys.modules.keys().isdisjoint(("msgspec", "typing_extensions")):
    # Where typing_extensions is installed msgspec takes what typing has, too, from there. That loads inspect, ast and tokenize with it:
    # 1.3 MB in each of our processes, and 8 ms of each start. What stands later is its schemas and other formats.
    from gputop.system.later import import_lean

    with EndsAtOnce():
        import_lean(
            ("msgspec",),
            ("msgspec.inspect", "msgspec._json_schema", "msgspec.toml", "msgspec.yaml"),
            {"typing_extensions": None},
        )
