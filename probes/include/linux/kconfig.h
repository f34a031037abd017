/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * All that bcc needs of a kernel's headers. BCC_KERNEL_SOURCE points to the folder above include/, bcc forces this file first,
 * and the seven others it opens are empty: linux/{types,bpf_common,version,log2}.h, uapi/linux/{bpf,if_packet}.h, asm/page.h.
 * Works on bcc 0.18 to 0.31. Where things lie in the kernel's structures comes from BTF at run time, never from here.
 */
#ifndef GPUTOP_KCONFIG_H
#define GPUTOP_KCONFIG_H

#define CONFIG_BPF_SYSCALL 1

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __s8 s8;
typedef __u8 u8;
typedef __s16 s16;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;
typedef __u16 __be16, __le16, __sum16;
typedef __u32 __be32, __le32, __wsum;
typedef __u64 __be64, __le64, __aligned_u64;
typedef _Bool bool;
typedef unsigned long size_t, uintptr_t;
typedef long ssize_t;
typedef int pid_t;
typedef u32 dev_t, gfp_t, uid_t, gid_t;
typedef u64 sector_t, loff_t;
typedef unsigned short umode_t;

#define true 1
#define false 0
#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)
#define PAGE_SHIFT 12
#define PAGE_SIZE 4096
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 15, 0) /* bcc wants 4.8 or later; nothing else looks at it */
#define roundup_pow_of_two(n) ((n) <= 1 ? 1UL : 1UL << (64 - __builtin_clzl((unsigned long)(n) - 1)))

#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
struct pt_regs {
  u64 regs[31], sp, pc, pstate;
};
#else
struct pt_regs {
  unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#endif

#endif
