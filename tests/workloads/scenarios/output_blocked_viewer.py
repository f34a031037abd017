"""A renderer sends frames over TCP to the one viewer that is connected; the viewer begins to take its time for each.

Truth: the GPU has nothing to do most of the time (input-bound) because the renderer blocks in send(2) on a full socket (output-blocked),
whose reader, the culprit `viewer`, sleeps 120 ms over each frame and computes nothing. Scene, CPUs and GPU are all there in time; the
victim is `renderer`. Lost: 0.73 of the GPU's time. Frames that are dropped for a slow viewer would fix it, and so would a viewer that reads
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RENDERER = """
#include <arpa/inet.h>
enum { FRAME = 1024 * 576 * 4 };

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), room = 1 << 18;
    char port[16];
    setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    require(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 1), "listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
    if (!fork()) {
        setsid();
        execl(in_folder("viewer"), "viewer", "127.0.0.1", port, NULL);
        _exit(1);
    }
    int viewer = accept(listener, NULL, NULL);
    gpu_open(0, 2600u << 20);
    char *frame = pinned(FRAME);
    for (;;) {
        burn_ms(2);  /* the scene */
        for (int pass = 0; pass < 4; pass++) gpu_launch(8);
        gpu_copy(frame, FRAME, TO_HOST);
        gpu_wait();
        if (!write_all(viewer, frame, FRAME)) return 1;
        step();
    }
}
"""
_VIEWER = """
#include <arpa/inet.h>
enum { FRAME = 1024 * 576 * 4 };

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(argv[argc - 2])};
    int renderer = socket(AF_INET, SOCK_STREAM, 0), room = 1 << 18;
    char *frame = malloc(FRAME);
    end_with_parent();
    address.sin_port = htons((unsigned short)atoi(argv[argc - 1]));
    setsockopt(renderer, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    require(!connect(renderer, (struct sockaddr *)&address, sizeof address), "connect");
    while (read_all(renderer, frame, FRAME)) if (raised("slow")) sleep_ms(120);
    return 0;
}
"""


def train(_trainer: Trainer) -> None:
    native.become("renderer --scene city.usd --stream 0.0.0.0")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    [viewer] = running.named("viewer")
    running.blame(viewer, "viewer")
    with native.flag(running):
        yield
    running.account()


prepare = partial(native.built, renderer=_RENDERER, viewer=_VIEWER)
SCENARIO = Scenario(Label("input-bound", "output-blocked", frozenset({"viewer"})), train, disturb, prepare, needs=native.missing)
