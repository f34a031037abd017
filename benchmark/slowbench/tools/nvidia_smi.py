"""nvidia-smi with a written rule: the columns that people look at first, and the usual conclusions.

The readings come from NVML, the source of nvidia-smi's: the simulated GPU has no nvidia-smi. The rule: a utilization of 80 % and more is
healthy, unless heat or power hold a clock down; below 5 % there is no work to do; between them the GPU waits for its input, for a reason
that these columns do not show, and the usual advice is to try more loader workers.
"""

from __future__ import annotations

from collections import deque

import pynvml

from slowbench.adapter import MORE_WORKERS, answer, every, ready

_HELD = 0x8 | 0x20 | 0x40 | 0x80  # slowdown by hardware, software's heat, hardware's heat, power brake (nvml.h)


def main() -> None:
    """Watch the first GPU."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    ready(pynvml.nvmlSystemGetDriverVersion())
    last: deque[int] = deque(maxlen=5)
    for _ in every(1.0):
        last.append(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        util = sum(last) / len(last)
        if pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & _HELD:
            answer("computes-slowly", "gpu-throttled", advice="look at temperature and power")
        elif util >= 80:
            answer("works", "none")
        elif util < 5:
            answer("nothing-to-do", "none")
        else:
            answer("waits-for-input", advice="more DataLoader workers", command=MORE_WORKERS)


if __name__ == "__main__":
    main()
