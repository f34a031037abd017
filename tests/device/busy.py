"""`python -m tests.device.busy COMMAND …`: the command, beside a GPU that is busy: kernels, copies and waits."""

from __future__ import annotations

import subprocess
import sys
from threading import Event, Thread

from tests.workloads.gpu import Gpu


def main() -> None:
    """Run it; its exit code is ours."""
    gpu, over = Gpu(), Event()

    def work() -> None:
        while not over.is_set():
            gpu.copy_in(16 << 20, pinned=True)
            for _ in range(50):
                gpu.launch(0.2)
            gpu.synchronize()

    thread = Thread(target=work, daemon=True)
    thread.start()
    code = subprocess.run(sys.argv[1:], check=False).returncode
    over.set()
    thread.join()
    sys.exit(code)


if __name__ == "__main__":
    main()
