"""The eBPF source: which thread waited, for what, and which other thread caused the wait; CUDA calls.

The loader (`loader`, the only part that needs bcc and root) runs under the system's Python as a `helper`. It compiles probes/*.c, attaches
the scheduler's programs and hands their descriptors over. The collector (`source`) reads the maps (`maps`, `sched`, `cuda`), and attaches
the uprobes itself when it finds a trainer's libcuda (`libcuda`, `uprobe`).
"""
