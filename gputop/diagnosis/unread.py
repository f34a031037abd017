"""What frames hold that no verdict looks at: a long recording is judged without it, in a fraction of the time."""

from __future__ import annotations

from gputop.model.frame import CudaCall, Gpu, Host, Preempt, ProcSample, SchedThread, ThreadSample, Wakeup

UNREAD: dict[type, frozenset[str]] = {
    ProcSample: frozenset((
        "num_threads", "timeslices", "minflt", "blkio_delay_ns", "swapin_delay_ns", "kernel_stack", "rchar_bytes",
    )),
    ThreadSample: frozenset(("timeslices", "state", "invol")),
    SchedThread: frozenset((
        "oncpu_ns", "runnable_ns", "preempted_ns", "sleeping_ns", "vol", "invol", "max_run_delay_ns", "hist", "start_ns", "state",
        "comm",
    )),
    Preempt: frozenset(("times",)),
    Wakeup: frozenset(("times",)),
    CudaCall: frozenset(("max_ns", "inflight_ns")),
    Gpu: frozenset((
        "name", "uuid", "pci_bus_id", "architecture", "util_t_ns", "mem_util_pct", "mem_used_bytes", "mem_total_bytes",
        "mem_reserved_bytes", "energy_mj", "mem_clock_mhz", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "mem_temp_c",
        "power_limit_max_w", "mem_clock_max_mhz", "pstate", "fan_pct", "pcie_gen_max", "nvlink_tx_bytes",
        "nvlink_rx_bytes", "nvlink_links", "enc_pct", "dec_pct", "ecc_corrected", "ecc_uncorrected", "retired_pages", "remapped_rows",
        "remap_pending", "remap_failed", "xid", "compute_mode", "mig_mode", "mig", "nvml_ns", "nvml_calls",
    )),
    Host: frozenset((
        "ctxt", "procs_running", "load1", "mem_total_bytes", "mem_available_bytes", "mem_cached_bytes", "swap_total_bytes",
        "swap_free_bytes", "pswpout", "pgmajfault", "shm_total_bytes", "shm_free_bytes",
    )),
}  # fmt: skip
"""Struct -> fields. Who makes a verdict look at one of them takes it out here; a test feeds every known cause without them."""
