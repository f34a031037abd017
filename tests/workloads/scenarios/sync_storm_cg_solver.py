"""A solver of linear systems in CUDA C that fetches the residual after each iteration: host and GPU take turns hundreds of times a step.

Truth: the GPU idles between short kernels (wait-heavy) because each iteration copies eight bytes back, waits for them, and only then
decides on and launches the next kernels (sync-storm). Each of 300 iterations has 0.09 ms of kernels and 0.12 ms of the host and of waking
up. Input is there, and nobody else is a victim or to blame: it is the program `cg_solve` itself. Lost: 0.55 of the GPU's time. A check of
the residual each tenth iteration, or on the device, would fix it.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CG_SOLVE = """
enum { RHS = 1 << 20, ITERATIONS = 300 };

int main(void) {
    gpu_open(0, 1000 << 20);
    double *residual = pinned(sizeof *residual);
    void *rhs = pinned(RHS);
    for (;;) {
        gpu_copy(rhs, RHS, TO_DEVICE);
        for (int i = 0; i < ITERATIONS; i++) {
            gpu_launch(0.06);  /* the sparse product */
            gpu_launch(0.03);  /* the dot product */
            gpu_copy(residual, sizeof *residual, TO_HOST);
            gpu_wait();
            burn_ms(0.05);
        }
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("cg_solve --matrix flow.mtx --rtol 1e-8 --check-every 1")


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train, prepare=partial(native.built, cg_solve=_CG_SOLVE), needs=native.missing)
