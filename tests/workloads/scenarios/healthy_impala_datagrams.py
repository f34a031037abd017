"""A learner with a replay memory: games send it trajectories as datagrams, at the pace of their games, and it learns from old ones.

Truth: healthy. Four `game_actor` processes sleep from frame to frame and send a trajectory each 200 ms; a thread of the learner puts them
into the replay memory, from which the main thread takes a batch for each step without waiting for new ones. The GPU works nearly all the
time (lost: 0.04), though the games are slow and from some moment on half as fast. Nobody is a victim or to blame.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_WIRE = "enum { TRAJECTORY = 24 << 10, ACTORS = 4 };"
_LEARNER = (
    _WIRE
    + """
enum { MEMORY = 256 };
static char replay[MEMORY][TRAJECTORY];
static _Atomic(long) received;
static int wire;

static void *collect(void *unused) {
    name_thread("replay_rx");
    for (long number = 0; recv(wire, replay[number % MEMORY], TRAJECTORY, 0) > 0; number++) atomic_store(&received, number + 1);
    return unused;
}

int main(void) {
    wire = bound_at("trajectories", SOCK_DGRAM);
    for (int i = 0; i < ACTORS; i++) {
        if (fork()) continue;
        execl(in_folder("game_actor"), "game_actor", "--env", "PongNoFrameskip-v4", NULL);
        _exit(1);
    }
    gpu_open(0, 1100 << 20);
    char *batch = pinned(16 * TRAJECTORY);
    run_thread(collect, NULL);
    while (!atomic_load(&received)) sleep_ms(10);
    for (unsigned seed = 1;;) {
        long known = atomic_load(&received) < MEMORY ? atomic_load(&received) : MEMORY;
        for (int i = 0; i < 16; i++) memcpy(batch + i * TRAJECTORY, replay[rand_r(&seed) % known], TRAJECTORY);
        gpu_copy(batch, 16 * TRAJECTORY, TO_DEVICE);
        for (int layer = 0; layer < 9; layer++) gpu_launch(4);
        gpu_wait();
        step();
    }
}
"""
)
_ACTOR = (
    _WIRE
    + """
int main(void) {
    char *trajectory = calloc(TRAJECTORY, 1);
    int learner = connected_to("trajectories", SOCK_DGRAM);
    end_with_parent();
    for (;;) {
        for (int frame = 0; frame < 12; frame++) {
            burn_ms(0.6);
            sleep_ms(raised("slow") ? 33 : 16);
        }
        send(learner, trajectory, TRAJECTORY, 0);
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("impala_learner --replay-ratio 8 --actors 4")


prepare = partial(native.built, impala_learner=_LEARNER, game_actor=_ACTOR)
SCENARIO = Scenario(HEALTHY, train, native.flag, prepare, needs=native.missing)
