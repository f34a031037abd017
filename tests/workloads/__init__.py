"""Labelled workloads: real training processes over a simulated GPU, real disturbances, and what is wrong with each.

    python -m tests.workloads --list
    python -m tests.workloads cpu-contention --seconds 20

`scenarios/` holds one small file per workload: its dataset, its training loop, its disturbance and its label. `runner` starts
one and ends everything it started; `environment` gives the variables under which CUDA and NVML are the stubs.
"""
