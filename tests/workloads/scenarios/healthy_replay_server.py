"""Three actors push trajectories to a replay server over a UNIX socket, which is full; a learner in C draws one a step from it.

Truth: healthy. The learner's GPU works nearly all the time, 30 ms a step; each actor needs 10 ms of CPU for a trajectory and then sleeps
until the server has room again, by design, three times as fast as the learner. From some moment on the actors' episodes get longer, and
there is still more than enough. Nobody is a victim or to blame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_ACTORS = 3
_TRAJECTORY = "enum { TRAJECTORY = 96 << 10 };"
_REPLAY_SERVER = (
    _TRAJECTORY
    + """
QUEUE(table, 12);

static void *serve(void *client) {
    int fd = (int)(intptr_t)client;
    char what;
    while (read_all(fd, &what, 1)) {
        char *trajectory = what == 'i' ? malloc(TRAJECTORY) : get(&table);
        if (what == 'i') {
            if (!read_all(fd, trajectory, TRAJECTORY)) break;
            put(&table, trajectory);
            if (!write_all(fd, "!", 1)) break;
        } else {
            if (!write_all(fd, trajectory, TRAJECTORY)) break;
            free(trajectory);
        }
    }
    return NULL;
}

int main(void) {
    int listener = bound_at("replay.sock", SOCK_STREAM);
    end_with_parent();
    signal(SIGPIPE, SIG_IGN);
    for (;;) run_thread(serve, (void *)(intptr_t)accept(listener, NULL, NULL));
}
"""
)
_ACTOR = (
    _TRAJECTORY
    + """
int main(void) {
    int server = connected_to("replay.sock", SOCK_STREAM);
    char *trajectory = calloc(1 + TRAJECTORY, 1), taken;
    end_with_parent();
    trajectory[0] = 'i';
    do burn_ms(raised("later") ? 14 : 10);
    while (write_all(server, trajectory, 1 + TRAJECTORY) && read_all(server, &taken, 1));
    return 0;
}
"""
)
_LEARNER = (
    _TRAJECTORY
    + """
int main(void) {
    int server = connected_to("replay.sock", SOCK_STREAM);
    gpu_open(0, 800 << 20);
    char *trajectory = pinned(TRAJECTORY);
    for (;;) {
        if (!write_all(server, "s", 1) || !read_all(server, trajectory, TRAJECTORY)) return 1;
        gpu_copy(trajectory, TRAJECTORY, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("dmpo_learner --replay unix:replay.sock --task walker")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    programs = {f"actor_{number}": _ACTOR for number in range(_ACTORS)}
    with native.built(running, dmpo_learner=_LEARNER, reverb_server=_REPLAY_SERVER, **programs), ExitStack() as stack:
        for command in ("reverb_server --max-size 12", *programs):
            stack.enter_context(native.beside(running, command))
        yield


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="later"), prepare, needs=native.missing)
