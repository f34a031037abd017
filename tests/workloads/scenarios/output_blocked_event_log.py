"""A simulation in C writes its events through a thread and a UNIX socket to `fluent-bit`, in which somebody switches a parser on.

Truth: the GPU has nothing to do most of the time (input-bound) because `fluent-bit` now needs 80 ms of a core for the events of a step of
25 ms (output-blocked): its socket is full, the thread `event_log` sleeps in write(2), the queue before that thread is full, and the main
thread of `particles` sleeps in futex(2) until there is room. The culprit is `fluent-bit`, the victim `particles`; a CPU idles, the disk
does nothing. Lost: 0.69 of the GPU's time. Fewer events, a reader without that parser, or events that are dropped would fix it; a larger
queue would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_NAME = "fluent-bit"
_EVENTS = "enum { EVENTS = 192 << 10, LINES = 24 << 10 };"
_PARTICLES = (
    _EVENTS
    + """
QUEUE(spare, 4);
QUEUE(logged, 2);

static void *log_events(void *unused) {
    int socket = connected_to("fluent.sock", SOCK_STREAM);
    name_thread("event_log");
    for (;;) {
        void *events = get(&logged);
        require(write_all(socket, events, EVENTS), "fluent.sock");
        put(&spare, events);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 1000 << 20);
    for (int i = 0; i < 4; i++) put(&spare, pinned(EVENTS));
    run_thread(log_events, NULL);
    for (;;) {
        for (int kernel = 0; kernel < 10; kernel++) gpu_launch(2.4);
        void *events = get(&spare);
        gpu_copy(events, EVENTS, TO_HOST);
        gpu_wait();
        burn_ms(0.6);  /* format */
        put(&logged, events);
        step();
    }
}
"""
)
_FLUENT_BIT = (
    _EVENTS
    + """
int main(void) {
    int writer = accept(bound_at("fluent.sock", SOCK_STREAM), NULL, NULL);
    char *lines = malloc(LINES);
    end_with_parent();
    while (read_all(writer, lines, LINES)) burn_ms(raised("parser") ? 10 : 0.3);
    return 0;
}
"""
)


def train(_trainer: Trainer) -> None:
    native.start(f"{_NAME} -c /fluent-bit/etc/fluent-bit.conf", start_new_session=True)
    native.become("particles --mesh tokamak.h5 --events unix:fluent.sock")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    [reader] = running.named(_NAME)
    running.blame(reader, _NAME)
    with native.flag(running, "parser"):
        yield
    running.account()


prepare = partial(native.built, **{"particles": _PARTICLES, _NAME: _FLUENT_BIT})
SCENARIO = Scenario(Label("wait-heavy", "output-blocked", frozenset({_NAME})), train, disturb, prepare, needs=native.missing)
