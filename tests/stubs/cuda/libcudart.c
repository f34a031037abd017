/* The CUDA runtime over the stub driver: libcudart.so.12, or compiled into a program (static_trainer.c) as nvcc does by default.
 *
 * Like the real one it opens libcuda.so.1 when first used and asks cuGetProcAddress for what it calls. A kernel is named by the
 * address of its host function: `gputop_work` and `ncclGputopBarrier` below, or what __cudaRegisterFunction was told.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"), noinline))
enum { SUCCESS = 0, INVALID_VALUE = 1, INSUFFICIENT_DRIVER = 35, HOST_TO_HOST = 0, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };
typedef struct { unsigned x, y, z; } dim3;
typedef void *handle;

static struct {
    int (*cuInit)(unsigned), (*cuDeviceGetCount)(int *), (*cuDevicePrimaryCtxRetain)(handle *, int), (*cuCtxSetCurrent)(handle);
    int (*cuDevicePrimaryCtxSetFlags)(int, unsigned), (*cuModuleGetFunction)(handle *, handle, const char *);
    int (*cuStreamCreate)(handle *, unsigned), (*cuStreamDestroy)(handle), (*cuStreamSynchronize)(handle), (*cuStreamQuery)(handle), (*cuCtxSynchronize)(void);
    int (*cuStreamWaitEvent)(handle, handle, unsigned);
    int (*cuEventCreate)(handle *, unsigned), (*cuEventDestroy)(handle), (*cuEventRecord)(handle, handle), (*cuEventSynchronize)(handle), (*cuEventQuery)(handle);
    int (*cuLaunchKernel)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
    int (*cuMemAlloc)(uintptr_t *, size_t), (*cuMemFree)(uintptr_t), (*cuMemHostAlloc)(void **, size_t, unsigned), (*cuMemFreeHost)(void *);
    int (*cuMemcpyHtoD)(uintptr_t, const void *, size_t), (*cuMemcpyDtoH)(void *, uintptr_t, size_t), (*cuMemcpyDtoD)(uintptr_t, uintptr_t, size_t);
    int (*cuMemcpyHtoDAsync)(uintptr_t, const void *, size_t, handle), (*cuMemcpyDtoHAsync)(void *, uintptr_t, size_t, handle);
    int (*cuMemcpyDtoDAsync)(uintptr_t, uintptr_t, size_t, handle);
} cu;
static const struct { const char *name; void *slot; } wanted[] = {
#define WANTED(name) {#name, &cu.name}
    WANTED(cuInit), WANTED(cuDeviceGetCount), WANTED(cuDevicePrimaryCtxRetain), WANTED(cuCtxSetCurrent), WANTED(cuDevicePrimaryCtxSetFlags),
    WANTED(cuModuleGetFunction), WANTED(cuStreamCreate), WANTED(cuStreamDestroy), WANTED(cuStreamSynchronize), WANTED(cuStreamQuery),
    WANTED(cuCtxSynchronize), WANTED(cuStreamWaitEvent), WANTED(cuEventCreate), WANTED(cuEventDestroy), WANTED(cuEventRecord),
    WANTED(cuEventSynchronize), WANTED(cuEventQuery), WANTED(cuLaunchKernel), WANTED(cuMemAlloc), WANTED(cuMemFree), WANTED(cuMemHostAlloc),
    WANTED(cuMemFreeHost), WANTED(cuMemcpyHtoD), WANTED(cuMemcpyDtoH), WANTED(cuMemcpyDtoD), WANTED(cuMemcpyHtoDAsync), WANTED(cuMemcpyDtoHAsync),
    WANTED(cuMemcpyDtoDAsync),
};
static struct { const void *host; handle kernel; } kernels[64];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int loaded;
static __thread int bound, device;

API void gputop_work(void) {}
API void ncclGputopBarrier(void) {}

static int load(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    int (*get)(const char *, void **, int, uint64_t, int *) = NULL;
    if (driver) *(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
    for (size_t i = 0; get && i < sizeof wanted / sizeof *wanted; i++)
        if (get(wanted[i].name, wanted[i].slot, 12040, 0, NULL)) return INSUFFICIENT_DRIVER;
    return get ? cu.cuInit(0) : INSUFFICIENT_DRIVER;
}

/* Opens the driver once and gives the calling thread its device's primary context. */
static int enter(void) {
    if (bound) return SUCCESS;
    pthread_mutex_lock(&lock);
    int rc = loaded ? SUCCESS : load();
    loaded = !rc;
    pthread_mutex_unlock(&lock);
    handle context;
    if (rc || (rc = cu.cuDevicePrimaryCtxRetain(&context, device)) || (rc = cu.cuCtxSetCurrent(context))) return rc;
    bound = 1;
    return SUCCESS;
}

static handle kernel_of(const void *host, const char *name) {
    handle found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < 64; i++) {
        if (!kernels[i].host) {
            kernels[i].host = host;
            cu.cuModuleGetFunction(&kernels[i].kernel, NULL, name);
        }
        if (kernels[i].host == host) found = kernels[i].kernel;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
static handle kernel_at(const void *host) {
    if (host == (const void *)gputop_work) return kernel_of(host, "gputop_work");
    if (host == (const void *)ncclGputopBarrier) return kernel_of(host, "ncclGputopBarrier");
    return kernel_of(host, "kernel");
}

#define CALL(...) do { int rc_ = enter(); return rc_ ? rc_ : (__VA_ARGS__); } while (0)

API void __cudaRegisterFunction(void **fatbin, const char *host, char *dev, const char *name, int limit, void *a, void *b, void *c, void *d, int *e) {
    (void)fatbin, (void)dev, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
    if (!enter()) kernel_of(host, name);
}
API int cudaGetDeviceCount(int *count) { CALL(cu.cuDeviceGetCount(count)); }
API int cudaSetDevice(int index) { bound = 0; device = index; return enter(); }
API int cudaSetDeviceFlags(unsigned flags) { CALL(cu.cuDevicePrimaryCtxSetFlags(device, flags)); }
API int cudaFree(void *at) { CALL(at ? cu.cuMemFree((uintptr_t)at) : SUCCESS); }
API int cudaMalloc(void **at, size_t n) { CALL(cu.cuMemAlloc((uintptr_t *)at, n)); }
API int cudaHostAlloc(void **at, size_t n, unsigned flags) { CALL(cu.cuMemHostAlloc(at, n, flags)); }
API int cudaMallocHost(void **at, size_t n) { CALL(cu.cuMemHostAlloc(at, n, 0)); }
API int cudaFreeHost(void *at) { CALL(cu.cuMemFreeHost(at)); }

API int cudaStreamCreate(handle *s) { CALL(cu.cuStreamCreate(s, 0)); }
API int cudaStreamCreateWithFlags(handle *s, unsigned flags) { CALL(cu.cuStreamCreate(s, flags)); }
API int cudaStreamDestroy(handle s) { CALL(cu.cuStreamDestroy(s)); }
API int cudaStreamSynchronize(handle s) { CALL(cu.cuStreamSynchronize(s)); }
API int cudaStreamSynchronize_ptsz(handle s) { CALL(cu.cuStreamSynchronize(s)); }
API int cudaStreamQuery(handle s) { CALL(cu.cuStreamQuery(s)); }
API int cudaStreamWaitEvent(handle s, handle e, unsigned flags) { CALL(cu.cuStreamWaitEvent(s, e, flags)); }
API int cudaDeviceSynchronize(void) { CALL(cu.cuCtxSynchronize()); }
API int cudaEventCreate(handle *e) { CALL(cu.cuEventCreate(e, 0)); }
API int cudaEventCreateWithFlags(handle *e, unsigned flags) { CALL(cu.cuEventCreate(e, flags)); }
API int cudaEventDestroy(handle e) { CALL(cu.cuEventDestroy(e)); }
API int cudaEventRecord(handle e, handle s) { CALL(cu.cuEventRecord(e, s)); }
API int cudaEventSynchronize(handle e) { CALL(cu.cuEventSynchronize(e)); }
API int cudaEventQuery(handle e) { CALL(cu.cuEventQuery(e)); }

API int cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **params, size_t shared, handle s) {
    CALL(cu.cuLaunchKernel(kernel_at(f), grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, s, params, NULL));
}
API int cudaLaunchKernel_ptsz(const void *f, dim3 grid, dim3 block, void **params, size_t shared, handle s) {
    CALL(cu.cuLaunchKernel(kernel_at(f), grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, s, params, NULL));
}

static int copy(void *dst, const void *src, size_t n, int kind) {
    if (kind == HOST_TO_HOST) return memmove(dst, src, n) ? SUCCESS : INVALID_VALUE;
    if (kind == HOST_TO_DEVICE) return cu.cuMemcpyHtoD((uintptr_t)dst, src, n);
    return kind == DEVICE_TO_HOST ? cu.cuMemcpyDtoH(dst, (uintptr_t)src, n) : cu.cuMemcpyDtoD((uintptr_t)dst, (uintptr_t)src, n);
}
static int copy_async(void *dst, const void *src, size_t n, int kind, handle s) {
    if (kind == HOST_TO_HOST) return memmove(dst, src, n) ? SUCCESS : INVALID_VALUE;
    if (kind == HOST_TO_DEVICE) return cu.cuMemcpyHtoDAsync((uintptr_t)dst, src, n, s);
    return kind == DEVICE_TO_HOST ? cu.cuMemcpyDtoHAsync(dst, (uintptr_t)src, n, s) : cu.cuMemcpyDtoDAsync((uintptr_t)dst, (uintptr_t)src, n, s);
}
API int cudaMemcpy(void *dst, const void *src, size_t n, int kind) { CALL(copy(dst, src, n, kind)); }
API int cudaMemcpy_ptds(void *dst, const void *src, size_t n, int kind) { CALL(copy(dst, src, n, kind)); }
API int cudaMemcpyAsync(void *dst, const void *src, size_t n, int kind, handle s) { CALL(copy_async(dst, src, n, kind, s)); }
API int cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t n, int kind, handle s) { CALL(copy_async(dst, src, n, kind, s)); }
