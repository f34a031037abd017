/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Where the threads of a few chosen processes leave the CPU, and for how long: kernel stacks summed.
 *
 * Measures  sched_switch (raw tracepoint; the plain one without BTF): the kernel stack with which a thread leaves the CPU, and ns
 *           until it runs again, waiting for a CPU after its wake-up included.
 * Keys      chosen: pid · leaving: tid · sums: (pid, tid, kernel stack, why it left). Ids are those of the initial pid namespace.
 * Sizes     chosen and leaving as many as asked for (THREADS); sums SUMS entries of 24 + 16 bytes; stacks SUMS of 127 frames.
 *           What found no room is counted in `lost`.
 * Cost      a look-up for every switch on the machine, about 2.5 us for one of a chosen thread (the stack): for some seconds, on
 *           demand, and never by itself. gputop/stacks/on_demand_loader.py loads it and takes it away again.
 */
#define __always_inline inline __attribute__((always_inline))

enum why { SLEPT, UNINTERRUPTIBLE, PREEMPTED };

struct departure {
  u64 since;
  u32 pid;
  s32 stack;
  u32 why, pad;
};
struct place {
  u32 pid, tid;
  s32 stack;
  u32 why;
};
struct sum {
  u64 ns, times;
};
BPF_HASH(chosen, u32, u8, THREADS);
BPF_HASH(leaving, u32, struct departure, THREADS);
BPF_HASH(sums, struct place, struct sum, SUMS);
BPF_STACK_TRACE(stacks, SUMS);
BPF_ARRAY(lost, u64, 1);

static __always_inline void count_lost(void) {
  int zero = 0;
  u64 *count = lost.lookup(&zero);
  if (count)
    lock_xadd(count, 1);
}

static __always_inline void leave(void *ctx, int why, u64 now) {
  u64 id = bpf_get_current_pid_tgid();
  u32 tid = id, pid = id >> 32;
  struct departure departure = {.since = now, .pid = pid, .why = why};
  if (!tid || !chosen.lookup(&pid))
    return;
  departure.stack = stacks.get_stackid(ctx, 0);
  if (leaving.update(&tid, &departure))
    count_lost();
}

static __always_inline void come_back(u32 tid, u64 now) {
  struct departure *departure = leaving.lookup(&tid);
  struct place place = {};
  struct sum *sum, first = {};
  if (!departure)
    return;
  place.pid = departure->pid;
  place.tid = tid;
  place.stack = departure->stack;
  place.why = departure->why;
  first.ns = now - departure->since;
  first.times = 1;
  leaving.delete(&tid);
  sum = sums.lookup(&place);
  if (sum) {
    lock_xadd(&sum->ns, first.ns);
    lock_xadd(&sum->times, 1);
  } else if (sums.update(&place, &first)) {
    count_lost();
  }
}

#ifdef ID_OFF

static __always_inline u64 read64(u64 task, int offset) {
  u64 value = 0;
  bpf_probe_read_kernel(&value, sizeof(value), (void *)(task + offset));
  return value;
}

/* args: preempt, prev, next[, prev_state]. State 0 is a task preempted on its way to user mode, or yielding. */
RAW_TRACEPOINT_PROBE(sched_switch) {
  u64 now = bpf_ktime_get_ns();
#ifdef STATE_OFF
  u32 bits = read64(ctx->args[1], STATE_OFF);
#else
  u32 bits = ctx->args[3];
#endif
  come_back(read64(ctx->args[2], ID_OFF), now);
  leave(ctx, ctx->args[0] || bits == 0 ? PREEMPTED : bits & 2 ? UNINTERRUPTIBLE : SLEPT, now);
  return 0;
}

#else

TRACEPOINT_PROBE(sched, sched_switch) {
  u64 now = bpf_ktime_get_ns();
  come_back(args->next_pid, now);
  leave(args, args->prev_state == 0 || args->prev_state & 0x100 ? PREEMPTED : args->prev_state & 2 ? UNINTERRUPTIBLE : SLEPT, now);
  return 0;
}

#endif
