"""Reinforcement learning in one native process: four threads act in slow environments, the main thread learns from what there is.

Truth: healthy. Acting threads mostly sleep in their environment, a simulator behind a socket pair that answers at its own pace, and hand
trajectories to a replay ring; the learner draws from the ring whether anything new came or not. From some moment on the environment answers
half as fast: nobody waits for that. The GPU works all the time, steps are as long as ever, nobody is a victim or to blame, and there is
nothing to fix.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_APPO_TRAIN = """
enum { ACTORS = 4, RING = 64, TRAJECTORY = 32 << 10, OBSERVATION = 2048, BATCH = 8 };
static char ring[RING][TRAJECTORY];
static _Atomic(long) written;
static pthread_mutex_t slots[RING];

static void simulate(int actor) {
    char observation[OBSERVATION] = {0}, action;
    end_with_parent();
    name_thread("vizdoom");
    while (read_all(actor, &action, 1)) {
        burn_ms(0.2);
        sleep_ms(raised("larger") ? 14 : 7);
        if (!write_all(actor, observation, OBSERVATION)) return;
    }
}

static void *act(void *environment) {
    int fd = (int)(intptr_t)environment;
    char trajectory[TRAJECTORY];
    name_thread("rollout");
    for (;;) {
        for (int at = 0; at < TRAJECTORY; at += OBSERVATION) {
            require(write_all(fd, "a", 1) && read_all(fd, trajectory + at, OBSERVATION), "environment");
            burn_ms(0.2);
        }
        int slot = (int)(atomic_fetch_add(&written, 1) % RING);
        pthread_mutex_lock(&slots[slot]);
        memcpy(ring[slot], trajectory, TRAJECTORY);
        pthread_mutex_unlock(&slots[slot]);
    }
    return NULL;
}

int main(void) {
    int pairs[ACTORS][2];
    for (int i = 0; i < ACTORS; i++) {
        require(!socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]), "socketpair");
        if (!fork()) simulate(pairs[i][1]), _exit(0);
        close(pairs[i][1]);
    }
    for (int i = 0; i < RING; i++) pthread_mutex_init(&slots[i], NULL);
    gpu_open(0, 700 << 20);
    char *batch = pinned(BATCH * TRAJECTORY);
    unsigned random = 1;
    for (int i = 0; i < ACTORS; i++) run_thread(act, (void *)(intptr_t)pairs[i][0]);
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            int slot = (int)(rand_r(&random) % RING);
            pthread_mutex_lock(&slots[slot]);
            memcpy(batch + i * TRAJECTORY, ring[slot], TRAJECTORY);
            pthread_mutex_unlock(&slots[slot]);
        }
        gpu_copy(batch, BATCH * TRAJECTORY, TO_DEVICE);
        for (int kernel = 0; kernel < 8; kernel++) gpu_launch(4);
        gpu_wait();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("appo_train --env doom_battle --num_workers 4 --train_for_env_steps 4000000000")


disturb = partial(native.flag, name="larger")
prepare = partial(native.built, appo_train=_APPO_TRAIN)
SCENARIO = Scenario(HEALTHY, train, disturb, prepare, needs=native.missing)
