"""The eBPF source (`source`): who waited, for what, because of whom.

A loader under the system's own Python (`loader`, the only part that needs bcc and root) compiles probes/*.c, attaches the
scheduler's programs and hands the descriptors over; the collector reads the maps (`maps`, `sched`, `cuda`) and attaches the
uprobes by itself when a trainer's libcuda is found (`libcuda`, `uprobe`).
"""
