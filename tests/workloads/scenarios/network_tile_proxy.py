"""A map-making program fetches aerial tiles through a caching proxy on its host; the proxy's upstream, in another city, gets slow.

Truth: the GPU starves (input-bound) because each tile dribbles in over 150 ms from the origin (network-io): the two fetching threads of
`orthomosaic` sleep in recv(2) at `squid`, and the threads of `squid` sleep in recv(2) at the origin. Nobody computes, no disk takes part,
CPUs idle. Victims are `orthomosaic` and `squid`; nobody is to blame. Lost: 0.65 of the GPU's time. More fetches at a time, or a nearer
mirror, would fix it; a larger proxy on this host would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WIRE = """
#include "tcp.h"
enum { TILE = 240 << 10, PART = 16 << 10, FETCHERS = 2 };
"""
_SERVER = """
static void *serve(void *client) {
    int fd = (int)(intptr_t)client;
    char *tile = calloc(TILE, 1), number[8];
    while (read_all(fd, number, sizeof number)) answer(fd, tile);
    return NULL;
}

static void serve_all(const char *name) {
    int listener = tcp_listening(name);
    end_with_parent();
    for (;;) run_thread(serve, (void *)(intptr_t)tcp_accepted(listener));
}
"""
_ORIGIN = (
    _WIRE
    + """
static void answer(int fd, char *tile) {
    for (int at = 0; at < TILE; at += PART) {
        if (raised("slow")) sleep_ms(10);
        if (!write_all(fd, tile + at, PART)) return;
    }
}
"""
    + _SERVER
    + 'int main(void) { serve_all("origin.port"); }'
)
_SQUID = (
    _WIRE
    + """
static void answer(int fd, char *tile) {
    static __thread int origin;
    if (!origin) origin = tcp_connected_to("origin.port");
    require(write_all(origin, "GETTILE", 8), "origin");
    for (int at = 0; at < TILE; at += PART)
        if (!read_all(origin, tile + at, PART) || !write_all(fd, tile + at, PART)) return;
}
"""
    + _SERVER
    + 'int main(void) { serve_all("squid.port"); }'
)
_ORTHOMOSAIC = (
    _WIRE
    + """
QUEUE(spare, 5);
QUEUE(tiles, 3);

static void *fetch(void *unused) {
    int proxy = tcp_connected_to("squid.port");
    name_thread("tile_fetch");
    for (;;) {
        void *tile = get(&spare);
        require(write_all(proxy, "GETTILE", 8) && read_all(proxy, tile, TILE), "squid");
        put(&tiles, tile);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 1500 << 20);
    for (int i = 0; i < 5; i++) put(&spare, pinned(TILE));
    for (int i = 0; i < FETCHERS; i++) run_thread(fetch, NULL);
    for (;;) {
        void *tile = get(&tiles);
        gpu_copy(tile, TILE, TO_DEVICE);
        for (int kernel = 0; kernel < 5; kernel++) gpu_launch(5);
        gpu_wait();
        put(&spare, tile);
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("orthomosaic --wms http://proxy:3128/ign --zoom 19")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    programs = native.built(running, orthomosaic=_ORTHOMOSAIC, squid=_SQUID, mapserv=_ORIGIN)
    with programs, native.beside(running, "mapserv --wms"), native.beside(running, "squid -N -f squid.conf"):
        yield


SCENARIO = Scenario(Label("input-bound", "network-io"), train, native.flag, prepare, needs=native.missing)
