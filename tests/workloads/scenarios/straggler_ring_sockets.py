"""Three ranks of a hydrodynamics code in C, a GPU each, reduce around a ring of sockets; a shock makes the last one refine its mesh.

Truth: the GPUs idle most of the time (straggler) because rank 2 regrids its refined patch on one CPU, 55 ms of each step instead of two
(straggler-rank), and the ring is as fast as its last member. Ranks 0 and 1 sleep in read(2) at their neighbours' sockets, nobody spins; a
CPU idles, and the sockets carry what they carried. The culprit is rank 2's `cloverleaf`, the victims are the other two. Lost: 0.73 of each
GPU's time. A new balance of the patches, or a regridding on the GPU, would fix it; a faster network would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS, _NAME = 3, "cloverleaf"
_CLOVERLEAF = """
enum { FIELD = 256 << 10, PART = 48 << 10 };

int main(void) {
    int rank = atoi(getenv("RANK")), ranks = atoi(getenv("WORLD_SIZE"));
    char own[32], next[32], part[PART] = {0};
    snprintf(own, sizeof own, "ring-%d", rank), snprintf(next, sizeof next, "ring-%d", (rank + 1) % ranks);
    int listener = bound_at(own, SOCK_STREAM), right = connected_to(next, SOCK_STREAM), left = accept(listener, NULL, NULL);
    gpu_open(rank, 800 << 20);
    void *field = pinned(FIELD);
    for (;;) {
        burn_ms(rank == 2 && raised("shock") ? 55 : 1);  /* regrid */
        gpu_copy(field, FIELD, TO_DEVICE);
        for (int kernel = 0; kernel < 8; kernel++) gpu_launch(2.5);
        gpu_copy(field, FIELD, TO_HOST);
        gpu_wait();
        for (int hop = 0; hop < 2 * (ranks - 1); hop++) {  /* reduce-scatter, all-gather */
            if (!write_all(right, part, PART) || !read_all(left, part, PART)) return 1;
            burn_ms(0.05);
        }
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("cloverleaf clover.in --ranks 3")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    running.blame(running.trainer_pids[2], _NAME)
    with native.flag(running, "shock"):
        yield
    running.account()


_LABEL = Label("straggler", "straggler-rank", frozenset({_NAME}))
prepare = partial(native.built, cloverleaf=_CLOVERLEAF)
SCENARIO = Scenario(_LABEL, train, disturb, prepare, ranks=_RANKS, devices=_RANKS, needs=native.missing)
