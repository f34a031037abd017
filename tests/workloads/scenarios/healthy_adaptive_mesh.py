"""A shock in a tube with adaptive refinement, in C: steps take 12 to 40 ms as levels come and go, and the mesh is rebuilt beside the GPU.

Truth: healthy. From some moment on the shock moves and the number of levels changes every few steps; each tenth step the host rebuilds the
mesh, 20 ms of CPU while the kernels of the step run. The GPU works nearly all the time, the pace of steps goes up and down because there is
more or less to compute. Nobody is a victim or to blame.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_AMR = """
int main(void) {
    gpu_open(0, 5000u << 20);
    char *tags = pinned(1 << 18);
    for (long number = 1;; number++) {
        int levels = raised("moves") ? 1 + (int)(number / 7 % 4) : 2;
        for (int level = 0; level < levels; level++)
            for (int sweep = 0; sweep < 4; sweep++) gpu_launch(3);
        if (number % 10 == 0 && levels > 1) burn_ms(20);  /* regrid */
        gpu_copy(tags, 1 << 18, TO_HOST);
        gpu_wait();
        burn_ms(0.3);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("castro inputs.sedov amr.max_level=3")


disturb, prepare = partial(native.flag, name="moves"), partial(native.built, castro=_AMR)
SCENARIO = Scenario(HEALTHY, train, disturb, prepare, needs=native.missing)
