/* A CUDA driver without a GPU: libcuda.so.1 whose streams are timelines (timeline.h).
 *
 * A launch takes its length from the kernel's parameters and its share of the SMs from the grid; see cuLaunchKernel. A
 * synchronize sleeps until the timeline is done, or spins where the context asks for it (CU_CTX_SCHED_SPIN, or
 * $GPUTOP_CUDA_SCHEDULE = spin | yield | poll | block for CU_CTX_SCHED_AUTO; default block). Copies take bytes at
 * $GPUTOP_CUDA_GBPS (default 12). $GPUTOP_CUDA_LOG names a file to which every synchronize and copy adds the line
 *     t_end_ns pid tid call wall_ns bytes
 * Build with prologues kept (-fno-omit-frame-pointer, no identical code folding): uprobes attach to these functions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "timeline.h"

#define POLLING 3u /* no flag of CUDA's: as drivers do that sleep for a moment between looks */
#define API __attribute__((visibility("default"), noinline))
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };

typedef struct context { struct device device; enum wait_mode mode; unsigned flags; struct stream *stream; struct stream *streams[64]; unsigned count; } context;
typedef struct { char name[64]; } kernel;
typedef struct { uint64_t at_ns; struct stream *stream; } event;
struct block { uintptr_t at; size_t bytes; bool host; struct block *next; };

static struct simgpu *sim;
static int visible[SIMGPU_DEVICES], visible_count, log_fd = -1;
static double bytes_per_ns = 12.0;
static bool forked;
static context *primary[SIMGPU_DEVICES];
static __thread context *current;
static struct block *blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

static void after_fork(void) { forked = true; } /* a context does not survive fork(): the child gets NOT_INITIALIZED */

static void find_visible(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (unsigned i = 0; !list && i < sim->devices; i++) visible[visible_count++] = (int)i;
    while (list && *list >= '0' && *list <= '9') {
        char *rest;
        long index = strtol(list, &rest, 10);
        if (index < (long)sim->devices && visible_count < (int)SIMGPU_DEVICES) visible[visible_count++] = (int)index;
        list = *rest == ',' ? rest + 1 : NULL;
    }
}

static void log_call(const char *call, uint64_t began, uint64_t bytes) {
    if (log_fd < 0) return;
    char line[160];
    uint64_t end = now_ns();
    int n = snprintf(line, sizeof line, "%llu %d %ld %s %llu %llu\n", (unsigned long long)end, getpid(), syscall(SYS_gettid), call,
                     (unsigned long long)(end - began), (unsigned long long)bytes);
    if (write(log_fd, line, (size_t)n) != n) log_fd = -1;
}

/* Initialization and devices */

API int cuInit(unsigned flags) {
    (void)flags;
    if (forked) return NOT_INITIALIZED;
    if (sim) return SUCCESS;
    if (!(sim = simgpu_open())) return NO_DEVICE;
    const char *log = getenv("GPUTOP_CUDA_LOG"), *rate = getenv("GPUTOP_CUDA_GBPS");
    if (log && *log) log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (rate && atof(rate) > 0) bytes_per_ns = atof(rate);
    find_visible();
    pthread_atfork(NULL, NULL, after_fork);
    return visible_count ? SUCCESS : NO_DEVICE;
}

API int cuDriverGetVersion(int *version) { *version = 12040; return SUCCESS; }
API int cuDeviceGetCount(int *count) { *count = visible_count; return sim && !forked ? SUCCESS : NOT_INITIALIZED; }
API int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal >= 0 && ordinal < visible_count ? SUCCESS : INVALID_DEVICE; }
API int cuDeviceGetName(char *name, int length, int device) { (void)device; snprintf(name, (size_t)length, "Simulated H100"); return SUCCESS; }
API int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 80ull << 30; return SUCCESS; }
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 16 ? (int)SMS : attribute == 75 ? 9 : 0; /* multiprocessor count, compute capability major */
    return SUCCESS;
}

/* Contexts */

static enum wait_mode mode_of(unsigned flags) {
    const char *asked = getenv("GPUTOP_CUDA_SCHEDULE");
    unsigned schedule = flags & 7u;
    if (schedule == 0 && asked) schedule = !strcmp(asked, "spin") ? 1 : !strcmp(asked, "yield") ? 2 : !strcmp(asked, "poll") ? POLLING : 4;
    return schedule == 1 ? WAIT_SPIN : schedule == 2 ? WAIT_YIELD : schedule == POLLING ? WAIT_POLL : WAIT_BLOCK;
}

static int context_new(context **out, unsigned flags, int device) {
    if (!sim || forked) return NOT_INITIALIZED;
    if (device < 0 || device >= visible_count) return INVALID_DEVICE;
    context *c = calloc(1, sizeof *c);
    struct simgpu_device *gpu = &sim->dev[visible[device]];
    c->device = (struct device){visible[device], gpu, register_process(gpu)};
    c->flags = flags;
    c->mode = mode_of(flags);
    c->stream = stream_new(&c->device);
    if (c->device.proc) atomic_fetch_add(&c->device.proc->mem_bytes, 480ull << 20); /* what a context itself takes */
    *out = c;
    return SUCCESS;
}

__attribute__((destructor)) static void leave(void) {
    for (unsigned i = 0; sim && !forked && i < SIMGPU_DEVICES; i++)
        for (unsigned j = 0; j < SIMGPU_PROCS; j++) {
            uint32_t self = (uint32_t)getpid();
            atomic_compare_exchange_strong(&sim->dev[i].procs[j].pid, &self, 0);
        }
}

API int cuCtxCreate_v2(context **out, unsigned flags, int device) { int rc = context_new(out, flags, device); if (!rc) current = *out; return rc; }
API int cuCtxCreate(context **out, unsigned flags, int device) { int rc = context_new(out, flags, device); if (!rc) current = *out; return rc; }
API int cuCtxDestroy_v2(context *c) { if (current == c) current = NULL; return SUCCESS; }
API int cuCtxSetCurrent(context *c) { current = c; return SUCCESS; }
API int cuCtxPushCurrent_v2(context *c) { current = c; return SUCCESS; }
API int cuCtxGetCurrent(context **c) { *c = current; return SUCCESS; }
API int cuCtxGetDevice(int *device) { *device = 0; for (int i = 0; current && i < visible_count; i++) if (visible[i] == current->device.index) *device = i; return SUCCESS; }
API int cuDevicePrimaryCtxRetain(context **out, int device) {
    if (device < 0 || device >= visible_count) return sim ? INVALID_DEVICE : NOT_INITIALIZED;
    int rc = primary[device] ? SUCCESS : context_new(&primary[device], 0, device);
    *out = primary[device];
    return rc;
}
API int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
API int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    context *c;
    int rc = cuDevicePrimaryCtxRetain(&c, device);
    if (!rc) c->mode = mode_of(c->flags = flags);
    return rc;
}

/* The context of this call, or the error for which there is none. A thread that never set one has the first device's. */
static int enter(void) {
    if (forked) return NOT_INITIALIZED;
    return current ? SUCCESS : cuDevicePrimaryCtxRetain(&current, 0);
}

/* Streams: NULL, 1 (legacy) and 2 (per thread) are the default stream */

static struct stream *stream_of(struct stream *s) { return (uintptr_t)s <= 2 ? current->stream : s; }

API int cuStreamCreate(struct stream **out, unsigned flags) {
    (void)flags;
    int rc = enter();
    if (rc) return rc;
    *out = stream_new(&current->device);
    if (current->count < 64) current->streams[current->count++] = *out;
    return SUCCESS;
}
API int cuStreamCreateWithPriority(struct stream **out, unsigned flags, int priority) { (void)priority; return cuStreamCreate(out, flags); }
API int cuStreamDestroy_v2(struct stream *s) { (void)s; return SUCCESS; }

static int synchronize(const char *call, struct stream *s) {
    uint64_t began = now_ns();
    int rc = enter();
    if (rc) return rc;
    stream_drain(stream_of(s), current->mode);
    log_call(call, began, 0);
    return SUCCESS;
}
API int cuStreamSynchronize(struct stream *s) { return synchronize("cuStreamSynchronize", s); }
API int cuStreamSynchronize_ptsz(struct stream *s) { return synchronize("cuStreamSynchronize_ptsz", s); }
API int cuCtxSynchronize(void) {
    uint64_t began = now_ns();
    int rc = enter();
    if (rc) return rc;
    stream_drain(current->stream, current->mode);
    for (unsigned i = 0; i < current->count; i++) stream_drain(current->streams[i], current->mode);
    log_call("cuCtxSynchronize", began, 0);
    return SUCCESS;
}

static int query(struct stream *s) { int rc = enter(); return rc ? rc : stream_done(stream_of(s)) ? SUCCESS : NOT_READY; }
API int cuStreamQuery(struct stream *s) { return query(s); }
API int cuStreamQuery_ptsz(struct stream *s) { return query(s); }

/* Events */

API int cuEventCreate(event **out, unsigned flags) { (void)flags; *out = calloc(1, sizeof **out); return SUCCESS; }
API int cuEventDestroy_v2(event *e) { free(e); return SUCCESS; }

static int record(event *e, struct stream *s) {
    int rc = enter();
    if (rc) return rc;
    e->stream = stream_of(s);
    pthread_mutex_lock(&e->stream->lock);
    e->at_ns = e->stream->end_ns;
    pthread_mutex_unlock(&e->stream->lock);
    return SUCCESS;
}
API int cuEventRecord(event *e, struct stream *s) { return record(e, s); }
API int cuEventRecord_ptsz(event *e, struct stream *s) { return record(e, s); }
API int cuEventQuery(event *e) { return e->at_ns <= now_ns() ? SUCCESS : NOT_READY; }
API int cuEventSynchronize(event *e) {
    uint64_t began = now_ns();
    int rc = enter();
    if (rc) return rc;
    wait_until(e->at_ns, current->mode);
    log_call("cuEventSynchronize", began, 0);
    return SUCCESS;
}
API int cuEventElapsedTime(float *ms, event *a, event *b) { *ms = (float)((double)b->at_ns - (double)a->at_ns) / 1e6f; return SUCCESS; }

static int stream_wait(struct stream *s, event *e) {
    int rc = enter();
    if (rc) return rc;
    s = stream_of(s);
    pthread_mutex_lock(&s->lock);
    s->end_ns = later(s->end_ns, e->at_ns);
    pthread_mutex_unlock(&s->lock);
    return SUCCESS;
}
API int cuStreamWaitEvent(struct stream *s, event *e, unsigned flags) { (void)flags; return stream_wait(s, e); }
API int cuStreamWaitEvent_ptsz(struct stream *s, event *e, unsigned flags) { (void)flags; return stream_wait(s, e); }

/* Kernels */

API int cuModuleLoadData(void **module, const void *image) { (void)image; *module = (void *)1; return SUCCESS; }
API int cuModuleGetFunction(kernel **out, void *module, const char *name) {
    (void)module;
    *out = calloc(1, sizeof **out);
    snprintf((*out)->name, sizeof (*out)->name, "%s", name);
    return SUCCESS;
}

/* `gputop_work(uint64_t ns)` keeps its blocks' share of the SMs busy for ns. A kernel named nccl…(uint64_t ns, uint64_t
 * *arrived, uint64_t target) first spins until *arrived >= target, as a collective waits for its peers. Any other takes 10 µs. */
static int launch(kernel *k, unsigned blocks, struct stream *s, void **params) {
    int rc = enter();
    if (rc) return rc;
    if (!k) return INVALID_VALUE;
    bool work = params && !strcmp(k->name, "gputop_work"), collective = params && !strncmp(k->name, "nccl", 4);
    uint64_t length = work || collective ? *(uint64_t *)params[0] : 10000;
    uint32_t weight = blocks >= SMS ? 1000000u : (uint32_t)((uint64_t)blocks * 1000000u / SMS);
    stream_launch(stream_of(s), length, weight, collective ? *(volatile uint64_t **)params[1] : NULL, collective ? *(uint64_t *)params[2] : 0);
    return SUCCESS;
}
API int cuLaunchKernel(kernel *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream *s, void **params, void **extra) {
    (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
    return launch(k, gx * gy * gz, s, params);
}
API int cuLaunchKernel_ptsz(kernel *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream *s, void **params, void **extra) {
    (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
    return launch(k, gx * gy * gz, s, params);
}

/* Memory */

static void remember(uintptr_t at, size_t bytes, bool host) {
    struct block *b = malloc(sizeof *b);
    pthread_mutex_lock(&blocks_lock);
    *b = (struct block){at, bytes, host, blocks};
    blocks = b;
    pthread_mutex_unlock(&blocks_lock);
}

/* The size of the block that begins at `at`, which is forgotten; 0 if there is none. */
static size_t forget(uintptr_t at, bool host) {
    size_t bytes = 0;
    pthread_mutex_lock(&blocks_lock);
    for (struct block **p = &blocks; *p; p = &(*p)->next)
        if ((*p)->at == at && (*p)->host == host) {
            struct block *b = *p;
            bytes = b->bytes, *p = b->next;
            free(b);
            break;
        }
    pthread_mutex_unlock(&blocks_lock);
    return bytes;
}

static bool pinned(const void *at) {
    bool found = false;
    pthread_mutex_lock(&blocks_lock);
    for (struct block *b = blocks; b && !found; b = b->next) found = b->host && (uintptr_t)at - b->at < b->bytes;
    pthread_mutex_unlock(&blocks_lock);
    return found;
}

API int cuMemAlloc_v2(uintptr_t *out, size_t bytes) {
    int rc = enter();
    if (rc) return rc;
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); /* addresses only */
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    remember(*out = (uintptr_t)at, bytes, false);
    if (current->device.proc) atomic_fetch_add(&current->device.proc->mem_bytes, bytes);
    return SUCCESS;
}
API int cuMemFree_v2(uintptr_t at) {
    int rc = enter();
    size_t bytes = rc ? 0 : forget(at, false);
    if (!bytes) return rc ? rc : INVALID_VALUE;
    munmap((void *)at, bytes);
    if (current->device.proc) atomic_fetch_sub(&current->device.proc->mem_bytes, bytes);
    return SUCCESS;
}
API int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    if (!(*out = malloc(bytes))) return OUT_OF_MEMORY;
    remember((uintptr_t)*out, bytes, true);
    return SUCCESS;
}
API int cuMemAllocHost_v2(void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
API int cuMemFreeHost(void *at) { if (!forget((uintptr_t)at, true)) return INVALID_VALUE; free(at); return SUCCESS; }
API int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) { (void)flags; remember((uintptr_t)at, bytes, true); return SUCCESS; }
API int cuMemHostUnregister(void *at) { return forget((uintptr_t)at, true) ? SUCCESS : INVALID_VALUE; }
API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    int rc = enter();
    if (rc) return rc;
    uint64_t used = 0;
    for (unsigned i = 0; i < SIMGPU_PROCS; i++) used += atomic_load(&current->device.gpu->procs[i].pid) ? atomic_load(&current->device.gpu->procs[i].mem_bytes) : 0;
    *total = 80ull << 30;
    *free_bytes = *total - used;
    return SUCCESS;
}

/* Copies. `host` is NULL where no host memory takes part. Pageable memory is staged through the driver's own by the calling
 * thread, so such a copy blocks, also an asynchronous one, and keeps a CPU busy: as in CUDA. */

static int copy(const char *call, struct stream *s, const void *host, size_t bytes, bool to_device, bool from_device, bool async) {
    uint64_t began = now_ns();
    int rc = enter();
    if (rc) return rc;
    bool staged = host && !pinned(host);
    struct work w = copy_of(bytes, host ? bytes_per_ns : 1500.0, staged, to_device, from_device);
    if (async && !staged) stream_copy_async(stream_of(s), w);
    else stream_copy(stream_of(s), w, current->mode, staged ? WAIT_SPIN : current->mode);
    log_call(call, began, bytes);
    return SUCCESS;
}

#define TO_DEVICE(name) API int name(uintptr_t dst, const void *src, size_t n) { (void)dst; return copy(#name, NULL, src, n, true, false, false); }
#define TO_DEVICE_ASYNC(name) API int name(uintptr_t dst, const void *src, size_t n, struct stream *s) { (void)dst; return copy(#name, s, src, n, true, false, true); }
#define TO_HOST(name) API int name(void *dst, uintptr_t src, size_t n) { (void)src; return copy(#name, NULL, dst, n, false, true, false); }
#define TO_HOST_ASYNC(name) API int name(void *dst, uintptr_t src, size_t n, struct stream *s) { (void)src; return copy(#name, s, dst, n, false, true, true); }
#define WITHIN(name) API int name(uintptr_t dst, uintptr_t src, size_t n) { (void)dst, (void)src; return copy(#name, NULL, NULL, n, false, false, false); }
#define WITHIN_ASYNC(name) API int name(uintptr_t dst, uintptr_t src, size_t n, struct stream *s) { (void)dst, (void)src; return copy(#name, s, NULL, n, false, false, true); }

TO_DEVICE(cuMemcpyHtoD)
TO_DEVICE(cuMemcpyHtoD_v2)
TO_DEVICE(cuMemcpyHtoD_v2_ptds)
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync)
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync_v2)
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync_v2_ptsz)
TO_HOST(cuMemcpyDtoH)
TO_HOST(cuMemcpyDtoH_v2)
TO_HOST(cuMemcpyDtoH_v2_ptds)
TO_HOST_ASYNC(cuMemcpyDtoHAsync)
TO_HOST_ASYNC(cuMemcpyDtoHAsync_v2)
TO_HOST_ASYNC(cuMemcpyDtoHAsync_v2_ptsz)
WITHIN(cuMemcpyDtoD_v2)
WITHIN_ASYNC(cuMemcpyDtoDAsync_v2)
WITHIN_ASYNC(cuMemcpyDtoDAsync_v2_ptsz)
WITHIN(cuMemcpy)
WITHIN(cuMemcpy_ptds)
WITHIN_ASYNC(cuMemcpyAsync)
WITHIN_ASYNC(cuMemcpyAsync_ptsz)

/* How the runtime finds the driver's functions: the newest version of the plain name. */
static int find(const char *name, void **out) {
    char versioned[96];
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *out = self ? dlsym(self, versioned) : NULL;
    if (self && !*out) *out = dlsym(self, name);
    return *out ? SUCCESS : NOT_FOUND;
}
API int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) { (void)version, (void)flags; return find(name, out); }
API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    int rc = find(name, out);
    if (status) *status = rc ? 1 : 0;
    return rc;
}
