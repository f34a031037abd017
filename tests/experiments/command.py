"""`gputop` in the place of a test: ``python -m tests.experiments.command WORD …``."""

from __future__ import annotations

import sys

from gputop.cli import main
from tests.experiments.place import from_environment

if __name__ == "__main__":
    from_environment()
    sys.exit(main(sys.argv[1:]))
