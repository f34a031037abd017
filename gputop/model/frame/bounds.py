"""The bound on the lists of a frame: a reader refuses longer ones, since anybody may have written the stream."""

from __future__ import annotations

import msgspec

MOST_IN_FRAME = 1 << 16  # entries per list (GPUs, processes, threads, pairs …); Linux allows 32,768 processes by default
BOUNDED = msgspec.Meta(max_length=MOST_IN_FRAME)
