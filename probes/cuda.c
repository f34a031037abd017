/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * How long each CUDA synchronize and memcpy took, and how many bytes were asked for.
 *
 * Measures  entry and return of libcuda's cu*Synchronize and cuMemcpy* (uprobes on the library's inode, so in every process that
 *           maps it; attached by user space when it finds the library). Kernel launches, of which there may be 100,000 a second, are
 *           counted (cuda_launch) while user space lets them be: some hundredths of a second now and then.
 * Keys      calls: (pid, call) · inflight: (tid, call). `call` is a number user space gives at attach time, in the cookie's low
 *           16 bits; the 16 above them say which argument is the byte count (0: none). Counters are cumulative.
 * Sizes     CALLS entries of 1,584 bytes; INFLIGHT entries of 40, and 256 of 12 for launches, least recently used first out.
 * Cost      about 1 µs a call where the function begins with push or endbr64; push, 10 µs and more where the kernel must
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

struct entered {
  u64 start, sp, bytes;
  u32 pid, pad;
};
BPF_TABLE("lru_hash", struct call_key, struct entered, inflight, INFLIGHT);

/* A call from within the same call, as through an alias, is part of it: its stack pointer is lower. An entry that is not, left by
 * a call that never returned, is overwritten. */
int cuda_enter(struct pt_regs *ctx) {
  u64 cookie = get_attach_cookie(ctx), id = bpf_get_current_pid_tgid();
  struct call_key key = {id, cookie & 0xffff};
  struct entered *outer = inflight.lookup(&key), entered = {.sp = ctx->sp, .pid = id >> 32};
  u64 third = ARGUMENT(ctx, 3), fifth = ARGUMENT(ctx, 5);
  u32 argument = cookie >> 16;
  asm volatile("" : "+r"(third), "+r"(fifth)); /* or clang joins the reads and the verifier sees a changed ctx pointer */
  if (outer && ctx->sp < outer->sp)
    return 0;
  entered.bytes = argument == 3 ? third : argument == 5 ? fifth : 0;
  entered.start = bpf_ktime_get_ns();
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
  return 0;
}

BPF_TABLE("lru_hash", u32, u64, launches, 256);

int cuda_launch(struct pt_regs *ctx) {
  u32 pid = bpf_get_current_pid_tgid() >> 32;
  u64 one = 1, *count = launches.lookup(&pid);
  if (count)
    lock_xadd(count, 1);
  else
    launches.update(&pid, &one);
  return 0;
}
