/* The kernels of the labelled workloads for a real GPU: what tests/stubs/cuda simulates, by the same names.
 *
 * nvcc -shared -Xcompiler -fPIC -cudart shared -device-entity-has-hidden-visibility=false -o libkernels.so kernels.cu (without the last
 * flag before CUDA 13, which made kernels hidden); then GPUTOP_KERNELS=/…/libkernels.so
 */

static __device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

/* Each block runs for ``length_ns`` from its own start, and as many SMs are at work as there are blocks. */
extern "C" __global__ void gputop_work(unsigned long long length_ns) {
  unsigned long long began = now_ns();
  while (now_ns() - began < length_ns)
    ;
}

/* A collective: after ``length_ns`` it spins until the peer's count, in memory the host pinned, is the goal. */
extern "C" __global__ void ncclGputopBarrier(unsigned long long length_ns, volatile unsigned long long *arrived, unsigned long long goal) {
  unsigned long long began = now_ns();
  while (now_ns() - began < length_ns || *arrived < goal)
    ;
}
