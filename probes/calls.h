/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What a thread sleeps for: the system call that it is in when it leaves its CPU, and the descriptor or futex. Part of sched.c.
 */
#ifndef GPUTOP_CALLS_H
#define GPUTOP_CALLS_H
#include "common.h"

enum state { UNSEEN, RUNNING, RUNNABLE, PREEMPTED, SLEEPING, UNINTERRUPTIBLE, DEAD };

/* What a sleep was for: a system call's number plus 1 (0: not known, NO_CALL: a page fault) in the lowest 10 bits, flags, and in
 * the upper 48 bits a descriptor or a futex's address. */
#define NO_CALL 1023
#define DEEP 0x400   /* uninterruptible */
#define TIMED 0x800  /* the call has a time limit */
#define SHARED 0x1000 /* a futex of several processes: the address is the sleeper's own */
#define INHERITS 0x2000 /* a futex that lends its owner the sleeper's priority */
#define SEVERAL 0x4000 /* polls several descriptors, of which none is told */
#define ONE 0x8000   /* polls, or is called with, the descriptor told */
#define ARGUMENT_SHIFT 16
enum argument { NOTHING, DESCRIPTOR, FUTEX, POLL, PPOLL, EPOLL, EPOLL2, SELECT };
BPF_ARRAY(arguments, u32, 512); /* by the number of a call */

static __always_inline u64 read64(u64 task, int offset) {
  u64 value = 0;
  bpf_probe_read_kernel(&value, sizeof(value), (void *)(task + offset));
  return value;
}

#ifdef PT_REGS
static void *(*current_task)(void) = (void *)158;   /* bpf_get_current_task_btf */
static void *(*registers_of)(void *) = (void *)175; /* bpf_task_pt_regs; neither is in bcc 0.18's list */

#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
struct entered_call {
  u64 argument[8], number;
};
#define FIRST_REGISTER 0
#define ARGUMENT(call, n) ((call).argument[n])
#else
struct entered_call {
  u64 r10, r9, r8, ax, cx, dx, si, di, number, ip, cs;
};
#define FIRST_REGISTER offsetof(struct pt_regs, r10)
#define ARGUMENT(call, n) ((n) == 0 ? (call).di : (n) == 1 ? (call).si : (n) == 2 ? (call).dx : (n) == 3 ? (call).r10 : (call).r8)
#define CS_64_BIT 0x33
#endif

static __always_inline u64 polled(u64 list, u64 count, bool timed) {
  u64 flags = timed ? TIMED : 0;
  u32 descriptor = 0;
  if (count == 0)
    return flags;
  if (count > 1 || bpf_probe_read_user(&descriptor, sizeof(descriptor), (void *)list))
    return flags | SEVERAL;
  return flags | ONE | (u64)descriptor << ARGUMENT_SHIFT;
}

#define FUTEX_CLOCK 0x100
#define FUTEX_PRIVATE 0x80
#define FUTEX_COMMAND 0x7f
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13

static __always_inline u64 futex(struct entered_call *call) {
  u32 command = ARGUMENT(*call, 1) & FUTEX_COMMAND;
  u64 flags = ARGUMENT(*call, 3) ? TIMED : 0;
  if (!(ARGUMENT(*call, 1) & FUTEX_PRIVATE))
    flags |= SHARED;
  if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2 || command == FUTEX_WAIT_REQUEUE_PI)
    flags |= INHERITS;
  return flags | ARGUMENT(*call, 0) << ARGUMENT_SHIFT;
}

/* What the present thread, which is leaving its CPU, is about to sleep for. */
static __always_inline u64 call_of(int state) {
  u64 registers = (u64)registers_of(current_task()), flags = state == UNINTERRUPTIBLE ? DEEP : 0;
  struct entered_call call = {};
  u32 number, *argument;
  bpf_probe_read_kernel(&call, sizeof(call), (void *)(registers + FIRST_REGISTER));
#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
  number = read64(registers, SYSCALLNO_OFF);
#else
  number = call.number;
  if (call.cs != CS_64_BIT) /* 32-bit calls have numbers of their own */
    return flags;
#endif
  if ((s32)number < 0)
    return flags | NO_CALL;
  if (number >= 512)
    return flags;
  flags |= number + 1;
  argument = arguments.lookup(&number);
  if (!argument)
    return flags;
  switch (*argument) {
  case DESCRIPTOR:
    return flags | ONE | (ARGUMENT(call, 0) & 0xffffffff) << ARGUMENT_SHIFT;
  case FUTEX:
    return flags | futex(&call);
  case POLL:
    return flags | polled(ARGUMENT(call, 0), ARGUMENT(call, 1), (s32)ARGUMENT(call, 2) >= 0);
  case PPOLL:
    return flags | polled(ARGUMENT(call, 0), ARGUMENT(call, 1), ARGUMENT(call, 2));
  case EPOLL:
    return flags | ((s32)ARGUMENT(call, 3) >= 0 ? TIMED : 0);
  case EPOLL2:
    return flags | (ARGUMENT(call, 3) ? TIMED : 0);
  case SELECT:
    return flags | (ARGUMENT(call, 0) ? SEVERAL : 0) | (ARGUMENT(call, 4) ? TIMED : 0);
  }
  return flags;
}
#else
#define call_of(state) 0
#endif

#endif
