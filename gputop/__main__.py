"""`gputop`, and `python -m gputop`."""

import sys
from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal

# While modules are imported Ctrl-C ends us without a word; a KeyboardInterrupt there would print a traceback.
# A shell's `&` and nohup ignore SIGINT: that stays.
_is_ours = getsignal(SIGINT) is default_int_handler
if _is_ours:
    signal(SIGINT, SIG_DFL)
from gputop.cli import main  # noqa: E402

if _is_ours:
    signal(SIGINT, default_int_handler)

if __name__ == "__main__":
    sys.exit(main())
