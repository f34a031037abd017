"""`gputop`, and `python -m gputop`."""

import sys

from gputop import EndsAtOnce
from gputop.system.later import untranslated

with EndsAtOnce(), untranslated():
    from gputop.cli import main

if __name__ == "__main__":
    sys.exit(main())
