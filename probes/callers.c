/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Which Python line made the CUDA synchronizes and memcpys of a few chosen processes' main threads.
 *
 * Measures  entry and return of the functions that cuda.c counts, by the caller's Python frames: on entry the frames are followed
 *           through the process's memory, where user space has said that this interpreter keeps them (gputop/stacks/layout.py).
 *           A call from within another is part of it, so that the sums are times in which the thread was inside CUDA.
 * Keys      readers, scratch: pid · inside: pid · sums: (pid, call, hash of the frames) · python_stacks: that hash. Main threads
 *           only, whose tid is the pid. `call` is in the low 16 bits of the attach cookie.
 * Sizes     PROCESSES readers; SUMS sums of 552 bytes and as many stacks of 512. What found no room is counted in `lost`.
 * Cost      measured 2.7 us a call of a thread two frames deep and 9.7 us at 32, which is as deep as it looks: for some seconds, on
 *           demand, and never by itself. gputop/stacks/on_demand_loader.py loads it and takes it away again.
 */
#include "common.h"

#define DEPTH 32

struct reader {
  u64 frame; /* address of the word that leads to the innermost frame */
  u64 mask;  /* what of the word at `instruction` counts */
  u32 hops;  /* 3.11, 3.12: the word leads to a structure with the frame's address at `hop` */
  u32 hop, back, code, instruction, pad;
};
struct frame {
  u64 code, instruction;
};
struct python_stack {
  struct frame frame[DEPTH];
};
struct entered {
  u64 start, sp, stack;
  u32 call, pad;
};
struct caller {
  u32 pid, call;
  u64 stack;
};
struct caller_sum {
  u64 count, total, longest;
  u32 counts[BUCKETS];
};
BPF_HASH(readers, u32, struct reader, PROCESSES);
BPF_HASH(scratch, u32, struct python_stack, PROCESSES); /* one for each: only its main thread writes it */
BPF_HASH(python_stacks, u64, struct python_stack, SUMS);
BPF_HASH(inside, u32, struct entered, PROCESSES);
BPF_HASH(sums, struct caller, struct caller_sum, SUMS);
BPF_ARRAY(blank_sum, struct caller_sum, 1);

static __always_inline u64 user_word(u64 address) {
  u64 value = 0;
  if (address)
    bpf_probe_read_user(&value, sizeof(value), (void *)address);
  return value;
}

/* Follow the frames into `stack`; their hash. Unused entries are zero. */
static __always_inline u64 follow(struct reader *reader, struct python_stack *stack) {
  u64 frame = user_word(reader->frame), hash = 14695981039346656037ULL;
  int i;
  if (reader->hops && frame)
    frame = user_word(frame + reader->hop);
  for (i = 0; i < DEPTH; i++) {
    u64 code = frame ? user_word(frame + reader->code) : 0;
    u64 instruction = frame ? user_word(frame + reader->instruction) & reader->mask : 0;
    stack->frame[i].code = code;
    stack->frame[i].instruction = instruction;
    hash = (hash ^ code) * 1099511628211ULL;
    hash = (hash ^ instruction) * 1099511628211ULL;
    frame = frame ? user_word(frame + reader->back) : 0;
  }
  return hash;
}

int cuda_enter(struct pt_regs *ctx) {
  u64 id = bpf_get_current_pid_tgid(), cookie = get_attach_cookie(ctx);
  u32 pid = id >> 32;
  struct reader *reader = readers.lookup(&pid);
  struct python_stack *stack = scratch.lookup(&pid);
  struct entered *outer, entered = {.sp = ctx->sp, .call = cookie & 0xffff};
  if ((u32)id != pid || !reader || !stack)
    return 0;
  outer = inside.lookup(&pid);
  if (outer && ctx->sp < outer->sp)
    return 0;
  entered.stack = follow(reader, stack);
  if (!python_stacks.lookup(&entered.stack) && python_stacks.update(&entered.stack, stack))
    count_lost(LOST_CALLS);
  entered.start = bpf_ktime_get_ns();
  if (inside.update(&pid, &entered))
    count_lost(LOST_INFLIGHT);
  return 0;
}

static __always_inline struct caller_sum *find_sum(struct caller *key) {
  struct caller_sum *sum = sums.lookup(key), *blank;
  int zero = 0;
  if (sum)
    return sum;
  blank = blank_sum.lookup(&zero);
  if (!blank)
    return NULL;
  sums.insert(key, blank);
  sum = sums.lookup(key);
  if (!sum)
    count_lost(LOST_CALLS);
  return sum;
}

int cuda_leave(struct pt_regs *ctx) {
  u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid(), cookie = get_attach_cookie(ctx), ns, bucket;
  u32 pid = id >> 32;
  struct entered *entered = inside.lookup(&pid);
  struct caller key = {.pid = pid, .call = cookie & 0xffff};
  struct caller_sum *sum;
  if ((u32)id != pid || !entered || entered->call != key.call || !RETURNED(ctx, entered->sp))
    return 0;
  key.stack = entered->stack;
  ns = now - entered->start;
  inside.delete(&pid);
  sum = find_sum(&key);
  if (!sum)
    return 0;
  bucket = bucket_of(ns);
  sum->count += 1;
  sum->total += ns;
  if (ns > sum->longest)
    sum->longest = ns;
  sum->counts[bucket] += 1;
  return 0;
}
