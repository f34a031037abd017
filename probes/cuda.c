/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * How long each CUDA synchronize and memcpy took, and how many bytes were asked for.
 *
 * Measures  entry and return of libcuda's cu*Synchronize and cuMemcpy* (uprobes on the library's inode, so in every process that
 *           maps it; attached by user space when it finds the library), and kernel launches (cuda_launch).
 * Budget    a call of an always attached function costs its process what its cookie says. A process that spends ALARM_NS in SPELL_NS
 *           raises an alarm, and user space detaches the function that did. Such functions, and launches, are attached for some
 *           milliseconds now and then, and counted while `gate` is open, under their call's number plus SAMPLED.
 * Keys      calls: (pid, call) · inflight, thread_calls: (tid, call) · spendings: pid. `call` is a number user space gives at attach time, in the
 *           cookie's low 16 bits; the 4 above them say which argument is the byte count (0: none), the 12 above those are the library's
 *           slot, and the 32 above those the price of a call in ns. Counters are cumulative.
 * Sizes     CALLS entries of 1,584 bytes; THREAD_CALLS of 24, INFLIGHT of 40, 256 of 12 for launches and of 20 for spendings, least recently used
 *           first out; a page of alarms.
 * Cost      1.2 µs a call where the function begins with push or endbr64; push, 11 µs (in a virtual machine) where the kernel must
 *           single-step its first instruction (sub rsp). Attaching behind endbr64 avoids the commonest such case.
 */
#include "common.h"

#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
#define ARGUMENT(ctx, n) ((ctx)->regs[(n) - 1])
#else
#define ARGUMENT(ctx, n) ((n) == 3 ? (ctx)->dx : (ctx)->r8)
#endif

struct call_key {
  u32 who, call;
};
struct call {
  u64 count, total;
  u64 max[2];
  u64 bytes;
  u64 sums[BUCKETS];
  u32 counts[BUCKETS];
};
BPF_HASH(calls, struct call_key, struct call, CALLS);
BPF_ARRAY(blank_call, struct call, 1);

/* The same by thread, which alone writes it: the backward pass's waits are not the main thread's. */
struct thread_call {
  u64 count, total;
  u32 pid, pad;
};
BPF_TABLE("lru_hash", struct call_key, struct thread_call, thread_calls, THREAD_CALLS);

static __always_inline void add_to_thread(struct call_key *key, u32 pid, u64 ns) {
  struct thread_call *own = thread_calls.lookup(key), fresh = {1, ns, pid, 0};
  if (own) {
    own->count += 1;
    own->total += ns;
  } else {
    thread_calls.update(key, &fresh);
  }
}

struct entered {
  u64 start, sp, bytes;
  u32 pid, pad;
};
BPF_TABLE("lru_hash", struct call_key, struct entered, inflight, INFLIGHT);

#define SAMPLED 0x8000
#define SPELL_NS 1000000000ULL
#define ALARM_NS 5000000ULL /* 0.5 % of a spell: gputop/sources/ebpf/budget.py, ALWAYS_SHARE */

struct spending {
  u64 since, ns;
};
BPF_TABLE("lru_hash", u32, struct spending, spendings, 256);

struct alarm {
  u32 pid, what; /* low 32 bits of the cookie: call and library */
};
BPF_RINGBUF_OUTPUT(alarms, 1);

/* Two threads may add at once and one sum be lost: it comes again with the next call. */
static __always_inline void spend(u32 pid, u64 cookie, u64 now) {
  struct spending *spending = spendings.lookup(&pid), fresh = {.since = now, .ns = cookie >> 32};
  struct alarm alarm = {pid, cookie};
  if (!spending || now - spending->since > SPELL_NS) {
    spendings.update(&pid, &fresh);
    return;
  }
  spending->ns += cookie >> 32;
  if (spending->ns < ALARM_NS)
    return;
  spendings.update(&pid, &fresh);
  alarms.ringbuf_output(&alarm, sizeof(alarm), 0);
}

struct gate {
  u64 open, close; /* ns */
};
BPF_ARRAY(gate, struct gate, 1);

static __always_inline bool gate_is_open(u64 now) {
  int zero = 0;
  struct gate *found = gate.lookup(&zero);
  return found && now >= found->open && now < found->close;
}

/* A call from within the same call, as through an alias, is part of it: its stack pointer is lower. An entry that is not, left by
 * a call that never returned, is overwritten. */
int cuda_enter(struct pt_regs *ctx) {
  u64 cookie = get_attach_cookie(ctx), id = bpf_get_current_pid_tgid();
  struct call_key key = {id, cookie & 0xffff};
  struct entered *outer = inflight.lookup(&key), entered = {.sp = ctx->sp, .pid = id >> 32};
  u64 third = ARGUMENT(ctx, 3), fifth = ARGUMENT(ctx, 5);
  u32 argument = cookie >> 16 & 0xf;
  asm volatile("" : "+r"(third), "+r"(fifth)); /* or clang joins the reads and the verifier sees a changed ctx pointer */
  if (outer && ctx->sp < outer->sp)
    return 0;
  entered.start = bpf_ktime_get_ns();
  if (key.call & SAMPLED && !gate_is_open(entered.start))
    return 0;
  entered.bytes = argument == 3 ? third : argument == 5 ? fifth : 0;
  if (inflight.update(&key, &entered))
    count_lost(LOST_INFLIGHT);
  return 0;
}

static __always_inline struct call *find_call(struct call_key *key) {
  struct call *call = calls.lookup(key), *blank;
  int zero = 0;
  if (call)
    return call;
  blank = blank_call.lookup(&zero);
  if (!blank)
    return NULL;
  calls.insert(key, blank); /* fails harmlessly where another thread was first */
  call = calls.lookup(key);
  if (!call)
    count_lost(LOST_CALLS);
  return call;
}

int cuda_leave(struct pt_regs *ctx) {
  u64 now = bpf_ktime_get_ns(), cookie = get_attach_cookie(ctx), id = bpf_get_current_pid_tgid(), ns;
  struct call_key key = {id, cookie & 0xffff}, owner = {id >> 32, cookie & 0xffff};
  struct entered *entered = inflight.lookup(&key);
  struct call *call;
  int zero = 0;
  struct settings *tick = settings.lookup(&zero);
  u64 bucket;
  if (!entered || !tick || !RETURNED(ctx, entered->sp))
    return 0;
  ns = now - entered->start;
  call = find_call(&owner);
  if (call) {
    bucket = bucket_of(ns);
    lock_xadd(&call->count, 1);
    lock_xadd(&call->total, ns);
    lock_xadd(&call->bytes, entered->bytes);
    lock_xadd(&call->sums[bucket], ns);
    lock_xadd(&call->counts[bucket], 1);
    keep_max(call->max, tick->epoch, ns);
  }
  inflight.delete(&key);
  add_to_thread(&key, id >> 32, ns);
  if (!(key.call & SAMPLED))
    spend(owner.who, cookie, now);
  return 0;
}

BPF_TABLE("lru_hash", u32, u64, launches, 256);

int cuda_launch(struct pt_regs *ctx) {
  u32 pid = bpf_get_current_pid_tgid() >> 32;
  u64 one = 1, *count;
  if (!gate_is_open(bpf_ktime_get_ns()))
    return 0;
  count = launches.lookup(&pid);
  if (count)
    lock_xadd(count, 1);
  else
    launches.update(&pid, &one);
  return 0;
}
