"""How much a frame may hold: a reader believes no more, whoever wrote it."""

from __future__ import annotations

import msgspec

MOST_IN_FRAME = 1 << 16  # GPUs, processes, threads, pairs …, each kind by itself; Linux allows 32,768 processes unless told otherwise
BOUNDED = msgspec.Meta(max_length=MOST_IN_FRAME)
