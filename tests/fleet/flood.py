"""A node that sends faster than anybody reads: ``python -m tests.fleet.flood`` writes frames without end, and without a rest.

It knows no summaries, as an old gputop, so that frames are what everybody reads of it.
"""

from __future__ import annotations

import sys
from itertools import count

from msgspec.structs import replace

from gputop.commands.replay import sample
from gputop.recording.format import pack_frames, pack_header
from gputop.recording.parts import open_recording


def main() -> int:
    if "--summary" in sys.argv:
        print("gputop: error: unrecognized arguments: --summary", file=sys.stderr)
        return 2
    with open_recording([sample()]) as recording:
        frames, header = list(recording.frames()), recording.header
    out, span_ns = sys.stdout.buffer, frames[-1].t_ns - frames[0].t_ns + header.interval_ns
    out.write(pack_header(header))
    for turn in count():
        for frame in frames:
            out.write(pack_frames([replace(frame, t_ns=frame.t_ns + turn * span_ns, seq=frame.seq + turn * len(frames))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
