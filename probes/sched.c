/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Who ran, who waited for a CPU and for how long, who took it away, who ended which sleep.
 *
 * Measures  sched_switch, sched_wakeup, sched_wakeup_new and sched_waking (raw tracepoints; plain ones without BTF):
 *           per thread, ns on a CPU, runnable, preempted (part of runnable), sleeping, uninterruptible; switches, voluntary
 *           and not, counted as the kernel counts them; the longest wait for a CPU of each epoch.
 *           For threads of the processes in `hot` also a histogram of those waits, who ran meanwhile, who woke them, and the
 *           system call that they slept in with its descriptor or futex address.
 * Keys      threads: the task · dead, histograms: tid · preempts: (victim tid, culprit tid) · wakeups: (wakee tid, waker tid,
 *           call) · hot: pid · slices: CPU. Ids are those of the initial pid namespace. Counters are cumulative: user space
 *           takes differences and, once it has read them, deletes entries of `dead` and what belongs to them.
 * Sizes     THREADS entries of 128 bytes, PAIRS of 24 (preempts), WAKES of 48; HOT_THREADS histograms of 512 bytes and
 *           DEAD_THREADS entries of 144. Updates that failed are counted in `lost`.
 * Cost      tests/bench/probe_cost.py measures it: 600 ns of CPU at most for a context switch and its wake-up. A read of the
 *           task costs as much as a map look-up, so threads are keyed by the task itself and their ids read once. Where a CPU
 *           switches very often, gputop/sources/ebpf/switches.py detaches the programs for most of the time; `opened` says since
 *           when they are attached.
 *
 * The loader defines ID_OFF (task_struct.pid, .tgid behind it), SUM_EXEC_OFF, STACK_OFF, RUN_DELAY_OFF where the kernel keeps it,
 * PT_REGS if it has bpf_task_pt_regs (5.15), SYSCALLNO_OFF on aarch64, FILES_OFF and what leads from there to an open file's
 * kind, and STATE_OFF where sched_switch has no prev_state (before 5.18), all from BTF; STACK_BYTES; SCRAMBLE, a random odd number;
 * THREADS, HOT_THREADS, DEAD_THREADS, PAIRS, WAKES and CPUS. Without ID_OFF the plain tracepoints are used, whose fields are
 * numbers: then threads are keyed by tid, and calls are not known.
 */
#include "common.h"
#include "calls.h"

/* Every change writes `since` and `state` before it adds to a sum, so that a reader in between sees less, never more. */
struct thread {
  u64 since; /* of the state */
  u64 start; /* birth, or first sight: tells a reused tid */
  u64 oncpu, runnable; /* at each switch-out the scheduler's own sums, where BTF says where they are */
  u64 preempted, sleeping, uninterruptible;
  u64 vol, invol;
  u64 max[2];
  u32 tid, pid;
  u8 state;
  u8 hot;
  u16 generation; /* of settings when `hot` was looked up */
  u32 cpu;        /* preempted: on this CPU, */
  u32 slice;      /* where this slice was the first that was not its own */
  u32 pad;
  u32 other, other_pid; /* preempted: who took the CPU; asleep: who is waking it */
  u64 call;             /* asleep: see call_of */
};
BPF_HASH(threads, u64, struct thread, THREADS);

struct ended {
  struct thread thread;
  char comm[16];
};
BPF_HASH(dead, u32, struct ended, DEAD_THREADS);
BPF_ARRAY(deaths, u64, 1); /* how many: where it stands still nobody need walk through `dead` */

struct histogram {
  u32 count[BUCKETS];
};
BPF_HASH(histograms, u32, struct histogram, HOT_THREADS);
BPF_ARRAY(blank, struct histogram, 1);

struct pair {
  u32 one, other;
};
struct pair_sum {
  u64 ns, times;
  u32 other_pid, pad;
};
BPF_HASH(preempts, struct pair, struct pair_sum, PAIRS);

#define S_IFMT 0xf000
#define S_IFSOCK 0xc000
struct wake {
  u32 wakee, waker;
  u64 call;
};
struct wake_sum {
  u64 ns, times;
  u32 waker_pid;
  u32 mode; /* of the descriptor's file when this was first seen: st_mode, and a socket's family in the upper 16 bits */
  u64 name; /* the first 8 bytes of its name */
};
BPF_HASH(wakeups, struct wake, struct wake_sum, WAKES);
BPF_HASH(hot, u32, u8, HOT_PROCESSES);

/* Who had the CPU lately: slice i lasts from its start to that of the next. */
#define SLICES 32
#define WALK 16
struct slice {
  u64 start;
  u32 tid, pid;
};
struct slices {
  u32 last, pad;
  u64 here; /* see in_interrupt */
  struct slice slice[SLICES];
};
BPF_ARRAY(slices, struct slices, CPUS);
struct opening {
  u64 at;    /* ns: when the programs were attached last; 0: they have been attached all the time */
  u64 first; /* event since then */
};
BPF_ARRAY(opened, struct opening, 1);

#define ordered() asm volatile("" ::: "memory")

static __always_inline struct settings *get_settings(void) {
  int zero = 0;
  return settings.lookup(&zero);
}

#ifdef ID_OFF
#define key_of(task) ((task) * SCRAMBLE) /* readers need no kernel addresses */
#define id_of(task) read64(task, ID_OFF)
#define oncpu_of(task, otherwise) read64(task, SUM_EXEC_OFF)
#else
#define key_of(tid) ((u64)(tid))
#define id_of(tid) ((u32)(tid) == (u32)bpf_get_current_pid_tgid() ? bpf_get_current_pid_tgid() : (u32)(tid))
#define oncpu_of(tid, otherwise) (otherwise)
#endif

#ifdef RUN_DELAY_OFF
#define runnable_of(task, otherwise) read64(task, RUN_DELAY_OFF)
#else
#define runnable_of(task, otherwise) (otherwise)
#endif

/* A task not seen before: it has been in `state` for a time we do not know. */
static __always_inline struct thread *meet(u64 task, int state, u64 now) {
  u64 key = key_of(task), id = id_of(task);
  struct thread fresh = {.since = now, .start = now, .tid = id, .pid = id >> 32, .state = state, .generation = ~0};
  fresh.oncpu = oncpu_of(task, 0);
  fresh.runnable = runnable_of(task, 0);
  if (threads.update(&key, &fresh))
    count_lost(LOST_THREADS);
  return threads.lookup(&key);
}

static __always_inline void end_sleep(struct thread *thread, u64 ns, int was) {
  if (was == SLEEPING)
    thread->sleeping += ns;
  else if (was == UNINTERRUPTIBLE)
    thread->uninterruptible += ns;
}

static __always_inline struct opening *get_opening(void) {
  int zero = 0;
  return opened.lookup(&zero);
}

/* The first event of a thread since the programs were attached again: its sleep is taken to have lasted until then, and since
 * then it has been in `state`, or this would not be its first event. One that has not run still sleeps in the same call. */
static __always_inline struct thread *meet_again(u64 task, struct thread *thread, int state, struct opening *opening) {
  int was = thread->state;
  u64 at = opening->at, ns = at - thread->since;
  if (!opening->first)
    opening->first = bpf_ktime_get_ns();
#ifdef ID_OFF
  u64 id = id_of(task);
  if (thread->tid != (u32)id || thread->pid != id >> 32) /* another thread has its structure now */
    return meet(task, state, at);
#endif
  thread->since = at;
  if (state != SLEEPING || (was != SLEEPING && was != UNINTERRUPTIBLE) || oncpu_of(task, ~0ULL) != thread->oncpu) {
    thread->state = state;
    thread->call = 0;
  }
  ordered();
  end_sleep(thread, ns, was);
  return thread;
}

/* The thread of a task that was in `state` until now. */
static __always_inline struct thread *find(u64 task, u64 key, int state) {
  struct thread *thread = threads.lookup(&key);
  struct opening *opening = get_opening();
  if (!thread || !opening || thread->since >= opening->at)
    return thread;
  return meet_again(task, thread, state, opening);
}

static __always_inline void add_pair(struct pair_sum *sum, u64 ns) {
  sum->ns += ns;
  sum->times += 1;
}

static __always_inline void charge(u32 victim, u32 culprit, u32 culprit_pid, u64 ns) {
  struct pair key = {victim, culprit};
  struct pair_sum *sum = preempts.lookup(&key), fresh = {ns, 1, culprit_pid, 0};
  if (sum)
    add_pair(sum, ns);
  else if (preempts.update(&key, &fresh))
    count_lost(LOST_PREEMPTS);
}

/* Divide the wait of a preempted thread among those who ran on its CPU meanwhile: the latest WALK slices each to their runner,
 * what came before them to the one who took the CPU. */
static __always_inline void charge_wait(struct thread *thread, u64 now) {
  int cpu = thread->cpu;
  struct slices *ran = slices.lookup(&cpu);
  u64 rest = now - thread->since, end = now;
  u32 at, i;
  if (!ran)
    return;
  at = ran->last;
  for (i = 0; i < WALK; i++, at--) {
    struct slice *slice = &ran->slice[at & (SLICES - 1)];
    u64 start = slice->start;
    if ((s32)(at - thread->slice) < 0 || start > end || end - start > rest)
      break;
    if (end > start)
      charge(thread->tid, slice->tid, slice->pid, end - start);
    rest -= end - start;
    end = start;
  }
  if (rest)
    charge(thread->tid, thread->other, thread->other_pid, rest);
}

static __always_inline void count_wait(u32 tid, u64 ns) {
  struct histogram *histogram = histograms.lookup(&tid);
  int zero = 0;
  if (!histogram) {
    histogram = blank.lookup(&zero);
    if (!histogram)
      return;
    if (histograms.update(&tid, histogram))
      count_lost(LOST_HISTOGRAMS);
    histogram = histograms.lookup(&tid);
    if (!histogram)
      return;
  }
  histogram->count[bucket_of(ns)] += 1;
}

/* The task's structure may soon be another's, so its totals move to `dead`, where they wait for user space. */
static __always_inline void bury(u64 key, struct thread *thread) {
  struct ended ended = {.thread = *thread};
  u32 tid = thread->tid;
  int zero = 0;
  u64 *count = deaths.lookup(&zero);
  bpf_get_current_comm(&ended.comm, sizeof(ended.comm));
  if (dead.update(&tid, &ended))
    count_lost(LOST_DEAD);
  if (count)
    lock_xadd(count, 1);
  threads.delete(&key);
}

static __always_inline void switch_out(u64 prev, struct slice *next, u32 cpu, u32 slice, int state, bool involuntary, u64 now) {
  u64 key = key_of(prev), ran;
  struct thread *thread = find(prev, key, RUNNING);
  if (!thread) {
    if (state != DEAD)
      meet(prev, state, now);
    return;
  }
  ran = thread->state == RUNNING ? now - thread->since : 0;
  thread->since = now;
  thread->state = state;
  ordered();
  thread->oncpu = oncpu_of(prev, thread->oncpu + ran);
  thread->runnable = runnable_of(prev, thread->runnable);
  if (involuntary)
    thread->invol += 1;
  else
    thread->vol += 1;
  thread->other = next->tid;
  thread->other_pid = next->pid;
  thread->cpu = cpu;
  thread->slice = slice;
#ifndef ID_OFF
  if (!thread->pid) { /* now it is known whose thread it is: look again whether that is hot */
    thread->pid = bpf_get_current_pid_tgid() >> 32;
    thread->generation = ~0;
  }
#endif
  thread->call = thread->hot && (state == SLEEPING || state == UNINTERRUPTIBLE) ? call_of(state) : 0;
  if (state == DEAD)
    bury(key, thread);
}

static __always_inline struct thread *switch_in(u64 next, struct settings *settings, u64 now) {
  u64 key = key_of(next), ns;
  struct thread *thread = find(next, key, RUNNABLE);
  int was;
  if (!thread)
    return meet(next, RUNNING, now);
  if (thread->generation != (u16)settings->generation) {
    thread->hot = hot.lookup(&thread->pid) != NULL;
    thread->generation = settings->generation;
  }
  was = thread->state;
  ns = now - thread->since;
  if (was == PREEMPTED && thread->hot)
    charge_wait(thread, now);
  thread->since = now;
  thread->state = RUNNING;
  ordered();
  if (was != RUNNABLE && was != PREEMPTED) {
    end_sleep(thread, ns, was);
    return thread;
  }
  thread->runnable += ns;
  if (was == PREEMPTED)
    thread->preempted += ns;
  keep_max(thread->max, thread->hot ? settings->epoch : settings->second, ns);
  if (thread->hot)
    count_wait(thread->tid, ns);
  return thread;
}

static __always_inline int on_switch(u64 prev, u64 next, int state, bool involuntary) {
  u64 now = bpf_ktime_get_ns();
  int cpu = bpf_get_smp_processor_id();
  struct settings *settings = get_settings();
  struct slices *ran = slices.lookup(&cpu);
  struct thread *thread;
  struct slice *slice;
  u32 number;
  if (!ran || !settings)
    return 0;
  thread = switch_in(next, settings, now); /* before its slice begins, which is no part of its own wait */
  number = ran->last + 1;
  slice = &ran->slice[number & (SLICES - 1)];
  slice->start = now;
  slice->tid = thread ? thread->tid : 0;
  slice->pid = thread ? thread->pid : 0;
  ran->last = number;
  switch_out(prev, slice, cpu, number, state, involuntary, now);
  return 0;
}

/* The kind of the file behind a descriptor of `task`, which sleeps in a call that keeps it open. */
static __always_inline void look_at_file(u64 task, u32 descriptor, struct wake_sum *sum) {
#ifdef FILES_OFF
  u64 table = read64(read64(task, FILES_OFF), FDT_OFF), file = read64(read64(table, FD_OFF), 8 * descriptor);
  u64 inode = read64(file, INODE_OFF);
  sum->mode = (u16)read64(inode, MODE_OFF);
  sum->name = read64(read64(read64(file, DENTRY_OFF), NAME_OFF), 0);
  if ((sum->mode & S_IFMT) == S_IFSOCK)
    sum->mode |= (u32)read64(read64(read64(file, PRIVATE_OFF), SK_OFF), FAMILY_OFF) << 16;
#endif
}

static __always_inline void count_wakeup(u64 task, struct thread *thread, u64 ns) {
  struct wake key = {thread->tid, thread->other, thread->call};
  struct wake_sum *sum = wakeups.lookup(&key), fresh = {.ns = ns, .times = 1, .waker_pid = thread->other_pid};
  if (sum) {
    sum->ns += ns;
    sum->times += 1;
    return;
  }
  if (key.call & ONE)
    look_at_file(task, key.call >> ARGUMENT_SHIFT, &fresh);
  if (wakeups.update(&key, &fresh))
    count_lost(LOST_WAKEUPS);
}

static __always_inline int on_wakeup(u64 task) {
  u64 key = key_of(task), now, ns;
  struct thread *thread = find(task, key, SLEEPING);
  int was;
  if (!thread) {
    meet(task, RUNNABLE, bpf_ktime_get_ns());
    return 0;
  }
  was = thread->state;
  if (was != SLEEPING && was != UNINTERRUPTIBLE)
    return 0; /* it had not gone to sleep yet */
  now = bpf_ktime_get_ns();
  ns = now - thread->since;
  thread->since = now;
  thread->state = RUNNABLE;
  ordered();
  end_sleep(thread, ns, was);
  if (thread->hot)
    count_wakeup(task, thread, ns);
  return 0;
}

/* Whether we run in an interrupt, in the name of whatever it interrupted. It has a stack of its own, except that on x86 one that
 * came in user mode uses the task's, on top of registers that tell it from a system call.
 * The verifier lets no program compute with the address of its stack, but a number read from a map is a number. Kernels from 6.13
 * on give programs that use 64 bytes or more a stack elsewhere: on_waking must stay below that. */
static __always_inline bool in_interrupt(u64 *local) {
#ifdef PT_REGS
  int cpu = bpf_get_smp_processor_id();
  struct slices *ran = slices.lookup(&cpu);
  volatile u64 *here;
  u64 at;
  if (!ran)
    return false;
  here = &ran->here;
  *here = (u64)local;
  at = *here;
  *here = 0;
  if (at - read64(bpf_get_current_task(), STACK_OFF) >= STACK_BYTES)
    return true;
#if defined(__x86_64__)
  return (s64)read64((u64)registers_of(current_task()), offsetof(struct pt_regs, orig_ax)) < 0;
#endif
#endif
  return false;
}

/* In the waker's context, which sched_wakeup often is not: an idle CPU does the wake-ups of its own threads. */
static __always_inline int on_waking(u64 task) {
  u64 key = key_of(task), waker = 0;
  struct settings *settings = get_settings();
  struct opening *opening = get_opening();
  struct thread *thread;
  if (!settings || !settings->hot_processes || !opening)
    return 0;
  thread = threads.lookup(&key);
  if (!thread || !thread->hot || (thread->state == PREEMPTED && thread->since >= opening->at))
    return 0;
  if (!in_interrupt(&key))
    waker = bpf_get_current_pid_tgid();
  thread->other = waker;
  thread->other_pid = waker >> 32;
  return 0;
}

/* A new thread. A child of a hot process is hot until `hot` is next looked up. */
static __always_inline int on_wakeup_new(u64 task, u64 parent_task) {
  u64 parent_key = key_of(parent_task);
  struct thread *thread = meet(task, RUNNABLE, bpf_ktime_get_ns()), *parent = threads.lookup(&parent_key);
  if (thread && parent) {
    thread->hot = parent->hot;
    thread->generation = parent->generation;
  }
  return 0;
}

#ifdef ID_OFF

#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_NOLOAD 0x400 /* an idle kernel thread */
#define TASK_DEAD 0x80

/* args: preempt, prev, next[, prev_state]. State 0 is a task preempted on its way to user mode, or yielding. */
RAW_TRACEPOINT_PROBE(sched_switch) {
#ifdef STATE_OFF
  u32 bits = read64(ctx->args[1], STATE_OFF);
#else
  u32 bits = ctx->args[3];
#endif
  bool involuntary = ctx->args[0] || bits == 0;
  int state = SLEEPING;
  if (involuntary)
    state = PREEMPTED;
  else if (bits & TASK_DEAD)
    state = DEAD;
  else if ((bits & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD)) == TASK_UNINTERRUPTIBLE)
    state = UNINTERRUPTIBLE;
  return on_switch(ctx->args[1], ctx->args[2], state, involuntary);
}

RAW_TRACEPOINT_PROBE(sched_waking) {
  return on_waking(ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(sched_wakeup) {
  return on_wakeup(ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(sched_wakeup_new) {
  return on_wakeup_new(ctx->args[0], bpf_get_current_task());
}

#else

#define REPORTED_DISK_SLEEP 0x2
#define REPORTED_DEAD 0x30
#define REPORTED_PREEMPTED 0x100

TRACEPOINT_PROBE(sched, sched_switch) {
  bool involuntary = args->prev_state == 0 || args->prev_state & REPORTED_PREEMPTED;
  int state = SLEEPING;
  if (involuntary)
    state = PREEMPTED;
  else if (args->prev_state & REPORTED_DEAD)
    state = DEAD;
  else if (args->prev_state & REPORTED_DISK_SLEEP)
    state = UNINTERRUPTIBLE;
  return on_switch(args->prev_pid, args->next_pid, state, involuntary);
}

TRACEPOINT_PROBE(sched, sched_waking) {
  return on_waking(args->pid);
}

TRACEPOINT_PROBE(sched, sched_wakeup) {
  return on_wakeup(args->pid);
}

TRACEPOINT_PROBE(sched, sched_wakeup_new) {
  return on_wakeup_new(args->pid, (u32)bpf_get_current_pid_tgid());
}

#endif
