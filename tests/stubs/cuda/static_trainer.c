/* A trainer with the CUDA runtime linked into it, as nvcc does by default: no libcudart.so is mapped, only libcuda.so.1.
 *
 * usage: static_trainer STEPS WORK_US [COPY_BYTES]: each step copies, launches and synchronizes; prints "STEPS done" at the end.
 */
#include <stdio.h>

#include "libcudart.c"

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long steps = atol(argv[1]), bytes = argc > 3 ? atol(argv[3]) : 0;
    uint64_t work_ns = (uint64_t)atol(argv[2]) * 1000;
    void *params[] = {&work_ns}, *on_device;
    if (cudaMalloc(&on_device, (size_t)bytes + 1)) return 1;
    for (long i = 0; i < steps; i++) {
        if (bytes && cudaMemcpy(on_device, &steps, (size_t)bytes, HOST_TO_DEVICE)) return 1;
        if (cudaLaunchKernel((const void *)gputop_work, (dim3){132, 1, 1}, (dim3){256, 1, 1}, params, 0, NULL)) return 1;
        if (cudaStreamSynchronize(NULL)) return 1;
    }
    printf("%ld done\n", steps);
    return 0;
}
