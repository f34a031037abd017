"""A GPU database with a thread for each connection and one that executes; dashboards begin to refresh all at once every three seconds.

Truth: idle, none. A refresh brings eight queries of 25 ms, which are answered in 0.2 s without a gap on the GPU; for the rest of the time
no query is open, the clients sleep by their clock and all of `sqlgpu` sleeps for them. Before, two clients ask without a break. Nobody is
slow, a victim or to blame.
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
enum { PANELS = 8, ASKING = 2, QUERY = 1024, ROWS = 8 << 10 };
"""
_SQLGPU = (
    _WIRE
    + """
QUEUE(queries, 16);

static void *connection(void *client) {
    char query[QUERY];
    name_thread("sql_session");
    while (read_all((int)(intptr_t)client, query, QUERY)) {
        burn_ms(0.2);
        put(&queries, client);
    }
    return NULL;
}

static void *listen_for(void *listener) {
    name_thread("sql_accept");
    for (;;) run_thread(connection, (void *)(intptr_t)tcp_accepted((int)(intptr_t)listener));
    return NULL;
}

int main(void) {
    static char rows[ROWS];
    signal(SIGPIPE, SIG_IGN);
    gpu_open(0, 6000u << 20);
    run_thread(listen_for, (void *)(intptr_t)tcp_listening("sqlgpu.port"));
    for (;;) {
        int client = (int)(intptr_t)get(&queries);
        for (int kernel = 0; kernel < 5; kernel++) gpu_launch(5);
        gpu_wait();
        write_all(client, rows, ROWS);
        step();
    }
}
"""
)
_DASHBOARDS = (
    _WIRE
    + """
static void *panel(void *number) {
    int db = tcp_connected_to("sqlgpu.port"), asks = (intptr_t)number < ASKING;
    char query[QUERY] = {0}, *rows = malloc(ROWS);
    for (double next_s = now_s();;) {
        if (!asks || raised("refresh")) {
            while (now_s() >= next_s) next_s += 3;
            while (now_s() < next_s) sleep_ms(1e3 * (next_s - now_s()) + 1);
            if (!asks && !raised("refresh")) continue;
        }
        if (!write_all(db, query, QUERY) || !read_all(db, rows, ROWS)) return NULL;
    }
}

int main(void) {
    end_with_parent();
    for (int i = 0; i < PANELS; i++) run_thread(panel, (void *)(intptr_t)i);
    for (;;) pause();
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("sqlgpu --executor-per-gpu --port 9047")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, sqlgpu=_SQLGPU, grafana=_DASHBOARDS), native.beside(running, "grafana server --homepath /usr/share/grafana"):
        yield


SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="refresh"), prepare, needs=native.missing)
