"""`python -m gputop`: the same as the `gputop` command."""

import sys

from gputop.cli import main

if __name__ == "__main__":
    sys.exit(main())
