"""A recognition server in C keeps eight connections; at some moment nobody asks any more, and the clients' libraries only ping.

Truth: idle, none. Each client sends a ping each 50 ms, and the server's one thread answers it from epoll without the GPU, in microseconds;
no request is open. Before, two clients ask without a break. Nobody is slow, a victim or to blame.
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
#include <sys/epoll.h>
enum { CLIENTS = 8, ASKING = 2, SOUND = 32 << 10 };
"""
_SERVER = (
    _WIRE
    + """
int main(void) {
    int listener = tcp_listening("asr.port"), poll = epoll_create1(0);
    gpu_open(0, 2000 << 20);
    char *sound = pinned(SOUND), what;
    for (int i = 0; i < CLIENTS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = tcp_accepted(listener)};
        require(!epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event), "epoll_ctl");
    }
    for (struct epoll_event event; epoll_wait(poll, &event, 1, -1) >= 0;) {
        if (!read_all(event.data.fd, &what, 1)) return 0;
        if (what == 'q') {
            if (!read_all(event.data.fd, sound, SOUND)) return 0;
            gpu_copy(sound, SOUND, TO_DEVICE);
            for (int layer = 0; layer < 4; layer++) gpu_launch(5);
            gpu_wait();
            step();
        }
        if (!write_all(event.data.fd, &what, 1)) return 0;
    }
    return 0;
}
"""
)
_CLIENTS = (
    _WIRE
    + """
static void *talk(void *number) {
    int asks = (intptr_t)number < ASKING, server = tcp_connected_to("asr.port");
    char *sound = calloc(1 + SOUND, 1), answer;
    for (;;) {
        int query = asks && !raised("quiet");
        if (!query) sleep_ms(50);
        sound[0] = query ? 'q' : 'p';
        if (!write_all(server, sound, query ? 1 + SOUND : 1) || !read_all(server, &answer, 1)) return NULL;
    }
}

int main(void) {
    end_with_parent();
    for (int i = 0; i < CLIENTS; i++) run_thread(talk, (void *)(intptr_t)i);
    for (;;) pause();
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("asr_server --model conformer.plan --port 50051")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, asr_server=_SERVER, callcenter=_CLIENTS), native.beside(running, "callcenter --agents 8"):
        yield


SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="quiet"), prepare, needs=native.missing)
