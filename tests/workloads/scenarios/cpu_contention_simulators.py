"""A learner in C asks two simulators over UNIX sockets for a rollout each a step; artists start renders at night prices on the same host.

Truth: the GPU starves (input-bound) because both `mujoco_env`, which take 16 ms of CPU for a rollout, wait for a CPU most of the time
(cpu-contention): eight threads of `blender` and `houdini`, two other people's programs, run on the two CPUs. Victims are `ppo_learner` and
its simulators, culprits the two renders. Lost: half of the GPU's time. Renders elsewhere, at a lower priority or in a group with less
weight would fix it; more simulators would not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from tests.workloads import native
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_RENDERS = ("blender", "houdini")
_ROLLOUT = "enum { ROLLOUT = 64 << 10, SIMULATORS = 2 };"
_LEARNER = (
    _ROLLOUT
    + """
int main(void) {
    int listener = bound_at("envs.sock", SOCK_STREAM), envs[SIMULATORS];
    for (int i = 0; i < SIMULATORS; i++) {
        if (!fork()) {
            execl(in_folder("mujoco_env"), "mujoco_env", "--xml", "humanoid.xml", NULL);
            _exit(1);
        }
        envs[i] = accept(listener, NULL, NULL);
    }
    gpu_open(0, 900 << 20);
    char *rollouts = pinned(SIMULATORS * ROLLOUT);
    for (int ahead = 0; ahead < 2; ahead++)
        for (int i = 0; i < SIMULATORS; i++) write_all(envs[i], "?", 1);
    for (;;) {
        for (int i = 0; i < SIMULATORS; i++) {
            if (!read_all(envs[i], rollouts + i * ROLLOUT, ROLLOUT)) return 1;
            write_all(envs[i], "?", 1);
        }
        gpu_copy(rollouts, SIMULATORS * ROLLOUT, TO_DEVICE);
        for (int epoch = 0; epoch < 5; epoch++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""
)
_SIMULATOR = (
    _ROLLOUT
    + """
int main(void) {
    int learner = connected_to("envs.sock", SOCK_STREAM);
    char *rollout = calloc(ROLLOUT, 1), asked;
    end_with_parent();
    while (read_all(learner, &asked, 1)) {
        burn_ms(16);
        if (!write_all(learner, rollout, ROLLOUT)) break;
    }
    return 0;
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("ppo_learner --envs 2 --task humanoid-run")


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, dict.fromkeys(_RENDERS, 2 * cpus()))


prepare = partial(native.built, ppo_learner=_LEARNER, mujoco_env=_SIMULATOR)
SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_RENDERS)), train, disturb, prepare, needs=native.missing)
