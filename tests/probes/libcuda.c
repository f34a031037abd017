/* A libcuda that sleeps as long as it is told and says how long it really slept: the truth of the CUDA probe's tests. */
#include <stdint.h>
#include <time.h>

static uint64_t last_ns;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int nap(uint64_t ns) {
  uint64_t begin = now_ns();
  struct timespec t = {ns / 1000000000ull, ns % 1000000000ull};
  if (ns)
    nanosleep(&t, 0);
  last_ns = now_ns() - begin;
  return 0;
}

uint64_t slept_ns(void) { return last_ns; }
int cuStreamSynchronize(uint64_t ns) { return nap(ns); }
int cuStreamSynchronize_ptsz(uint64_t ns) { return nap(ns); }
int cuCtxSynchronize(void) { return nap(200000); }
int cuEventSynchronize(uint64_t ns) { return nap(ns); }
int cuMemcpyHtoD_v2(void *to, const void *from, uint64_t bytes) { return nap(to && from && bytes ? 0 : 1); }
int cuMemcpyHtoD(void *to, const void *from, uint64_t bytes) __attribute__((alias("cuMemcpyHtoD_v2")));
int cuMemcpyDtoHAsync_v2(void *to, const void *from, uint64_t bytes, void *stream) { return nap(to && from && bytes && !stream ? 0 : 1); }
int cuMemcpy2D_v2(const void *description) { return nap(description ? 0 : 1); }

/* Functions whose first instruction the kernel emulates, and single-steps. */
#ifdef __x86_64__
#define HEAD(name, head, tail) \
  __asm__(".globl " name "\n.type " name ",@function\n" name ":\n" head "\nxor %eax,%eax\n" tail "\nret\n.size " name ",.-" name "\n")
HEAD("cuMemcpyDtoDAsync_v2", "push %rbx", "pop %rbx");
HEAD("cuMemcpyHtoDAsync_v2", "sub $8,%rsp", "add $8,%rsp");
int cuMemcpyDtoDAsync_v2(void), cuMemcpyHtoDAsync_v2(void);
#else
int cuMemcpyDtoDAsync_v2(void) { return 0; }
int cuMemcpyHtoDAsync_v2(void) { return 0; }
#endif

/* Calls one of them, or launches, all the time, with so much work of its own between two calls, and counts the calls in `count`. */
int storm(int which, uint64_t work, uint64_t for_ns, volatile uint64_t *count) {
  for (uint64_t end = now_ns() + for_ns; now_ns() < end; ++*count) {
    if (which == 0)
      cuMemcpyDtoDAsync_v2();
    else
      cuMemcpyHtoDAsync_v2();
    for (volatile uint64_t i = 0; i < work; i++)
      ;
  }
  return 0;
}
int cuLaunchKernel(uint64_t ns) { return nap(ns); }
int cuLaunchKernel_ptsz(uint64_t ns) __attribute__((alias("cuLaunchKernel")));
