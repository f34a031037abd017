"""Two ranks of a climate model, a GPU each, which exchange halos over a socket and sleep meanwhile; rank 0 begins to write history as text.

Truth: both GPUs idle most of the time (straggler) because rank 0 formats 80 ms of text after each step on its CPU (straggler-rank), while
rank 1 waits for its halo, asleep in recv(2). The culprit is rank 0's process `icon`, the victim rank 1; the socket is not slow, for 64 KB
are there at once when they are sent. Lost: 0.72 of both GPUs' time. History written by a thread or a process of its own would fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS = 2
_ICON = """
enum { HALO = 64 << 10 };

static void write_history(FILE *history, double cpu_ms) {
    double value = 287.15, until = thread_cpu_ms() + cpu_ms;
    rewind(history);
    while (thread_cpu_ms() < until)
        for (int cell = 0; cell < 400; cell++) fprintf(history, "%12.6f %12.6e\\n", value + cell, value / (cell + 1));
    fflush(history);
}

int main(void) {
    int rank = atoi(getenv("RANK")), peer = rank ? connected_to("halo", SOCK_STREAM) : accept(bound_at("halo", SOCK_STREAM), NULL, NULL);
    FILE *history = fopen(in_folder(rank ? "log.1" : "history.txt"), "w");
    gpu_open(rank, 1400 << 20);
    char *halo = pinned(HALO);
    for (;;) {
        gpu_copy(halo, HALO, TO_DEVICE);
        for (int kernel = 0; kernel < 5; kernel++) gpu_launch(6);
        gpu_copy(halo, HALO, TO_HOST);
        gpu_wait();
        if (rank == 0 && raised("history")) write_history(history, 80);
        if (!write_all(peer, halo, HALO) || !read_all(peer, halo, HALO)) return 1;
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("icon -n icon_master.namelist")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    running.blame(running.trainer_pids[0], "icon")
    with native.flag(running, "history"):
        yield
    running.account()


_LABEL = Label("straggler", "straggler-rank", frozenset({"icon"}))
prepare = partial(native.built, icon=_ICON)
SCENARIO = Scenario(_LABEL, train, disturb, prepare, ranks=_RANKS, devices=_RANKS, needs=native.missing)
