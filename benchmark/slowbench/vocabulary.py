"""Neutral words for symptoms and causes; an adapter translates its tool's words into these."""

from __future__ import annotations

WORKS, IDLE, UNKNOWN, NONE, PAUSE = "works", "nothing-to-do", "unknown", "none", "planned-pause"

SYMPTOMS = {
    WORKS: "the GPU works nearly all the time, on what it should",
    IDLE: "the GPU has no work to do now, or the job pauses by its own plan",
    "waits-for-input": "the GPU waits for data from loaders, disks, services or callers",
    "waits-for-copies": "the GPU, or its job, waits for copies between host and device",
    "waits-for-host": "the GPU waits for the trainer's own code between its kernels",
    "waits-for-rank": "all ranks wait for one of them",
    "waits-for-network": "all ranks wait for what they send to one another",
    "computes-slowly": "the GPU works all the time, slower than it could",
    "busy-in-vain": "the GPU is called busy, and hardly works",
    UNKNOWN: "the tool gives none",
}  # word -> meaning

CAUSES = {
    NONE: ("nothing is wrong", ""),
    UNKNOWN: ("the tool gives none", ""),
    PAUSE: ("a checkpoint, an evaluation, a compilation: part of the program", "make it rarer or shorter, or do it during training"),
    "cpu-taken-by-others": ("processes outside the job take its CPUs", "stop or move them, or give the job CPUs or a higher share"),
    "too-many-workers": ("the job's own processes and threads take each other's CPUs", "fewer workers, or fewer threads in each"),
    "pinned-to-few-cpus": ("the job may use too few CPUs while others idle", "a wider mask or cpuset"),
    "too-few-workers": ("loaders are all at work, CPUs idle", "more workers"),
    "slow-preparation": ("preparing a sample takes more CPU than there is", "prepare cheaper, beforehand, or on the GPU"),
    "interpreter-lock": ("threads of one interpreter wait for its lock", "processes in place of threads"),
    "lock": ("processes wait for a lock that others hold", "hold it shorter, or split it"),
    "slow-disk": ("reads or writes of a disk take the time", "another disk, a cache, larger reads, or stop its other users"),
    "slow-remote-data": ("data come over a network too slowly", "read ahead, more at a time, a cache"),
    "cpu-quota": ("a control group's quota stops the job", "a higher quota, or fewer threads"),
    "short-memory": ("pages are reclaimed, swapped or read again", "a higher limit, less kept, or stop other processes that take it"),
    "worker-restarts": ("loader processes are started over and over", "keep them between epochs"),
    "hung": ("a process that all wait for does not move", "end or continue it; find what it waits for"),
    "preparation-in-trainer": ("the trainer prepares its data itself", "do it in workers"),
    "blocked-output": ("the job waits for whoever reads its output", "a faster reader, or drop output"),
    "optimizer-on-host": ("the optimizer runs on the CPU", "a faster one, overlap, or the GPU"),
    "slow-copies": ("copies are pageable, many or large", "pin memory, copy aside, copy less"),
    "too-many-waits": ("the trainer waits for the GPU over and over", "ask for values seldom"),
    "tiny-kernels": ("kernels are shorter than their launch", "larger batches, fused kernels, graphs"),
    "late-rank": ("one rank has more to do, or less to do it with", "balance it, or free its node"),
    "slow-network": ("the wire between ranks is too slow for what is sent", "send less, overlap, another wire"),
    "network-fallback": ("ranks use a slower way than the machine has", "the variable or driver that opens the faster one"),
    "gpu-taken-by-others": ("another process uses the same GPU", "move one of them"),
    "narrow-pcie": ("the link to the GPU is narrower than it can be", "reseat the card, the slot's setting"),
    "far-memory": ("memory and GPU are at different sockets", "bind the job to the GPU's socket"),
    "front-end": ("the server's front end is the limit", "more processes of it"),
    "scheduler": ("the server's scheduler is the limit", "fewer or cheaper decisions for each step"),
    "full-cache": ("requests wait for space in the KV cache", "more space, shorter answers, fewer at a time"),
    "model-loading": ("a model is read before work begins", "a faster disk, a warm cache, another format"),
    "gpu-throttled": ("clocks are held down by heat, power or a setting", "cooling, power limit, setting"),
    "too-little-work": ("batches are too small for the GPU", "larger batches, several jobs on it"),
    "growing-memory": ("memory grows until it will be short", "free what is kept"),
    "lost-gpu": ("a GPU is gone or does not answer", "reset or replace it"),
    "link-errors": ("a link repeats packets", "replace cable or card"),
    "slower-than-before": ("the job is slower than it was, for no known reason", "look at what changed at that time"),
}  # word -> (meaning, what would fix it)

FROM_GPUTOP = {
    "healthy": WORKS, "idle": IDLE, "input-bound": "waits-for-input", "transfer-bound": "waits-for-copies", "wait-heavy": "waits-for-host",
    "straggler": "waits-for-rank", "comm-bound": "waits-for-network", "compute-bound": "computes-slowly",
    "busy-not-working": "busy-in-vain", "looking": UNKNOWN,
}  # gputop's symptom -> symptom
FROM_GPUTOP_CAUSE = {
    "none": NONE, "pause": PAUSE, "unexplained": UNKNOWN, "cpu-contention": "cpu-taken-by-others",
    "worker-oversubscription": "too-many-workers", "affinity": "pinned-to-few-cpus", "too-few-workers": "too-few-workers",
    "slow-transform": "slow-preparation", "gil-contention": "interpreter-lock", "lock-contention": "lock", "disk-io": "slow-disk",
    "network-io": "slow-remote-data", "cgroup-throttle": "cpu-quota", "memory-pressure": "short-memory",
    "worker-respawn": "worker-restarts", "hung-worker": "hung", "main-thread-preprocessing": "preparation-in-trainer",
    "output-blocked": "blocked-output", "host-optimizer": "optimizer-on-host", "h2d-transfer": "slow-copies",
    "sync-storm": "too-many-waits", "small-kernels": "tiny-kernels", "straggler-rank": "late-rank", "slow-wire": "slow-network",
    "comm-fallback": "network-fallback", "gpu-shared": "gpu-taken-by-others", "pcie-degraded": "narrow-pcie", "numa-remote": "far-memory",
    "frontend-bound": "front-end", "scheduler-bound": "scheduler", "kv-full": "full-cache", "model-load": "model-loading",
    "gpu-throttle": "gpu-throttled", "undersized-work": "too-little-work", "host-memory-growth": "growing-memory",
    "gpu-memory-growth": "growing-memory", "gpu-lost": "lost-gpu", "link-errors": "link-errors",
    "slower-than-usual": "slower-than-before",
}  # gputop's cause -> cause; a test holds that none is missing
