/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What sched.c, cuda.c and callers.c share: the settings user space writes, counters of what was lost, the histogram, and what
 * programs on uprobes need. Loaders put it before them in one text, because bcc sees maps in its main file only.
 */
#ifndef GPUTOP_COMMON_H
#define GPUTOP_COMMON_H

#define __always_inline inline __attribute__((always_inline))

struct settings {
  u32 epoch;      /* bumped in every tick: a maximum belongs to the epoch it was seen in */
  u32 generation; /* bumped whenever the map `hot` has changed */
  u32 hot_processes;
  u32 second; /* the epoch of threads that are told of once a second */
};
BPF_ARRAY(settings, struct settings, 1);

/* Updates that failed because a map was full, by the order of LOST. */
enum lost { LOST_THREADS, LOST_DEAD, LOST_HISTOGRAMS, LOST_PREEMPTS, LOST_WAKEUPS, LOST_CALLS, LOST_INFLIGHT, LOST_COUNT };
BPF_ARRAY(lost, u64, LOST_COUNT);

static __always_inline void count_lost(int which) {
  u64 *count = lost.lookup(&which);
  if (count)
    lock_xadd(count, 1);
}

/* Four buckets to the octave from 640 ns (bucket 0 holds what is shorter) to 32 minutes: gputop/model/histogram.py, less its FIRST. */
#define BUCKETS 128

static __always_inline u64 bucket_of(u64 ns) {
  u64 octave = 0, bucket;
  u64 rest = ns;
  if (ns < 640)
    return 0;
  if (rest >> 32) { octave += 32; rest >>= 32; }
  if (rest >> 16) { octave += 16; rest >>= 16; }
  if (rest >> 8) { octave += 8; rest >>= 8; }
  if (rest >> 4) { octave += 4; rest >>= 4; }
  if (rest >> 2) { octave += 2; rest >>= 2; }
  if (rest >> 1) octave += 1;
  bucket = 4 * octave + ((ns >> (octave - 2)) & 3) - 36;
  if (bucket >= BUCKETS)
    bucket = BUCKETS - 1;
  asm volatile("" : "+r"(bucket)); /* or clang drops the mask, without which older verifiers see no bound */
  return bucket & (BUCKETS - 1);
}

/* The longest duration of an epoch: its low 16 bits over 48 bits of ns. Even and odd epochs have a slot each, so that the one
 * user space reads is no longer written to. */
#define MAX_NS 0xffffffffffffULL

static __always_inline void keep_max(u64 *max, u32 epoch, u64 ns) {
  u64 tagged = (u64)(epoch & 0xffff) << 48 | (ns < MAX_NS ? ns : MAX_NS);
  u64 *slot = epoch & 1 ? max + 1 : max;
  if (*slot >> 48 != tagged >> 48 || *slot < tagged)
    *slot = tagged;
}

/* Programs on uprobes. A call has returned once the stack pointer is above (x86, where the return address has been popped), or as
 * high as, it was on entry: a call from within the same call, as through an alias, began lower. */
static u64 (*get_attach_cookie)(void *ctx) = (void *)174; /* bpf_get_attach_cookie, 5.15; not in bcc 0.18's list */

#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
#define RETURNED(ctx, entry_sp) ((ctx)->sp >= (entry_sp))
#else
#define RETURNED(ctx, entry_sp) ((ctx)->sp > (entry_sp))
#endif

#endif
