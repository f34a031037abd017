"""A process that holds a GPU context and memory and does next to nothing: `python gpu_idler.py SECONDS [DEVICE]`."""

from __future__ import annotations

import sys
import time

from tests.workloads.gpu import Gpu


def main() -> None:
    """A small kernel each half second."""
    gpu = Gpu(int(sys.argv[2]) if len(sys.argv) > 2 else 0, memory_bytes=256 << 20)
    print("ready", flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        gpu.launch(1.0, blocks=32)
        gpu.synchronize()
        time.sleep(0.5)


if __name__ == "__main__":
    main()
