"""A GPU database in C: one thread polls its clients, plans each query and runs it; analysts begin to send joins of many tables.

Truth: the GPU starves (input-bound) because the one thread of `gpudb` that launches kernels plans for 45 ms of CPU before each query that
takes the GPU 20 ms (main-thread-preprocessing). Six clients wait for their answers, nobody else computes, a CPU idles. The victim is
`gpudb`, nobody is to blame. Lost: 0.7 of the GPU's time. Planning in other threads, or plans that are kept, would fix it; more clients,
more CPUs or a faster network would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WIRE = """
#include "tcp.h"
#include <poll.h>
enum { CLIENTS = 6, QUERY = 512, ROWS = 16 << 10 };
"""
_GPUDB = (
    _WIRE
    + """
int main(void) {
    int listener = tcp_listening("gpudb.port");
    struct pollfd clients[CLIENTS];
    static char query[QUERY], rows[ROWS];
    gpu_open(0, 4000u << 20);
    char *columns = pinned(256 << 10);
    for (int i = 0; i < CLIENTS; i++) clients[i] = (struct pollfd){.fd = tcp_accepted(listener), .events = POLLIN};
    for (;;) {
        require(poll(clients, CLIENTS, -1) > 0, "poll");
        for (int i = 0; i < CLIENTS; i++) {
            if (!(clients[i].revents & POLLIN)) continue;
            if (!read_all(clients[i].fd, query, QUERY)) return 0;
            burn_ms(raised("joins") ? 45 : 1.5);  /* parse, enumerate join orders */
            gpu_copy(columns, 256 << 10, TO_DEVICE);
            for (int kernel = 0; kernel < 4; kernel++) gpu_launch(5);
            gpu_copy(columns, ROWS, TO_HOST);
            gpu_wait();
            if (!write_all(clients[i].fd, rows, ROWS)) return 0;
            step();
        }
    }
}
"""
)
_ANALYSTS = (
    _WIRE
    + """
static void *ask(void *unused) {
    char query[QUERY] = {0}, *rows = malloc(ROWS);
    int db = tcp_connected_to("gpudb.port");
    while (write_all(db, query, QUERY) && read_all(db, rows, ROWS)) {}
    return unused;
}

int main(void) {
    end_with_parent();
    for (int i = 0; i < CLIENTS; i++) run_thread(ask, NULL);
    for (;;) pause();
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("gpudb --data /var/lib/gpudb --port 6274 --num-gpus 1")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, gpudb=_GPUDB, superset=_ANALYSTS), native.beside(running, "superset --db gpudb://localhost:6274"):
        yield


disturb = partial(native.flag, name="joins")
SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, disturb, prepare, needs=native.missing)
