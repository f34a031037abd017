/* A simulated GPU: the file that $GPUTOP_SIMGPU names, mapped shared by all who take part.
 *
 * The CUDA stub books work into it, the NVML stub reads utilization, power, memory and processes from it. Times are
 * CLOCK_MONOTONIC nanoseconds. What is booked is contiguous up to busy_until_ns, so
 *     busy time by `now` = busy_ns - max(0, busy_until_ns - now)
 */
#ifndef GPUTOP_SIMGPU_H
#define GPUTOP_SIMGPU_H

#include <stdatomic.h>
#include <stdint.h>

#define SIMGPU_MAGIC 0x55504753u
#define SIMGPU_VERSION 2u
#define SIMGPU_DEVICES 16
#define SIMGPU_PROCS 64

struct simgpu_proc {
    _Atomic uint32_t pid; /* 0: free slot */
    uint32_t pad;
    _Atomic uint64_t mem_bytes;
    _Atomic uint64_t busy_ns;
};

struct simgpu_device {
    _Atomic uint64_t busy_ns;       /* all work ever booked */
    _Atomic uint64_t busy_until_ns; /* when what is booked ends */
    _Atomic uint64_t sm_busy_ns;    /* the same weighted by the share of SMs it uses (0..1) */
    _Atomic uint64_t sm_weight_ppm; /* of the work booked last */
    _Atomic uint64_t h2d_bytes, d2h_bytes, launches;
    _Atomic uint64_t copy_ns;       /* of the copy engines: what is staged moves in bursts at the link's speed */
    struct simgpu_proc procs[SIMGPU_PROCS];
};

struct simgpu {
    uint32_t magic, version, devices, pad;
    struct simgpu_device dev[SIMGPU_DEVICES];
};

#endif
