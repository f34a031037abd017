/* What the native programs of workloads need: kernels and copies, honest CPU work, whole reads and writes, flags, the step log.
 *
 * It is included by the C of a scenario (native.py). Only the process that calls gpu_open() uses the GPU.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEADY_STEPS 5
#define SMS 132
enum { TO_DEVICE = 1, TO_HOST = 2 };
typedef struct { unsigned x, y, z; } dim3;
int cudaSetDevice(int device), cudaMalloc(void **at, size_t bytes), cudaHostAlloc(void **at, size_t bytes, unsigned flags);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream), cudaStreamSynchronize(void *stream);
int cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **params, size_t shared, void *stream);
void gputop_work(uint64_t length_ns);

static void *gpu_memory;

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void sleep_ms(double ms) {
    struct timespec t = {(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000L};
    nanosleep(&t, NULL);
}

static inline double thread_cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Filter a plane of pixels again and again for `ms` of this thread's CPU time (not of the clock's). */
static inline void burn_ms(double ms) {
    static __thread unsigned char plane[1 << 16];
    double until = thread_cpu_ms() + ms;
    do {
        for (size_t i = 1; i < sizeof plane; i++) plane[i] = (unsigned char)((plane[i] * 5 + plane[i - 1] * 3 + 7) >> 3);
    } while (thread_cpu_ms() < until);
}

static inline void require(int fine, const char *what) {
    if (fine) return;
    perror(what);
    exit(1);
}

static inline void gpu_open(int device, size_t bytes) {
    require(!cudaSetDevice(device), "cudaSetDevice");
    require(!cudaMalloc(&gpu_memory, bytes), "cudaMalloc");
}

static inline void gpu_launch(double ms) {
    uint64_t length_ns = (uint64_t)(ms * 1e6);
    void *params[] = {&length_ns};
    require(!cudaLaunchKernel((const void *)gputop_work, (dim3){SMS, 1, 1}, (dim3){256, 1, 1}, params, 0, NULL), "cudaLaunchKernel");
}

static inline void gpu_wait(void) { require(!cudaStreamSynchronize(NULL), "cudaStreamSynchronize"); }

/* `host` to the GPU's memory, or from it: at once where it is pinned, else when the bytes are there. */
static inline void gpu_copy(void *host, size_t bytes, int kind) {
    int in = kind == TO_DEVICE;
    require(!cudaMemcpyAsync(in ? gpu_memory : host, in ? host : gpu_memory, bytes, kind, NULL), "cudaMemcpyAsync");
}

static inline void *pinned(size_t bytes) {
    void *at = NULL;
    require(!cudaHostAlloc(&at, bytes, 0), "cudaHostAlloc");
    memset(at, 1, bytes);
    return at;
}

/* The end of the file, or of the pipe's other side, is 0. */
static inline int read_all(int fd, void *to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, (char *)to + done, bytes - done);
        if (n <= 0) return 0;
        done += (size_t)n;
    }
    return 1;
}

static inline int write_all(int fd, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *)from + done, bytes - done);
        if (n <= 0) return 0;
        done += (size_t)n;
    }
    return 1;
}

/* PATH in the workload's folder; the disturbance makes the file `slow` there, or whatever the scenario calls it. */
static inline const char *in_folder(const char *name) {
    static __thread char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("GPUTOP_WORKLOAD_FOLDER"), name);
    return path;
}

static inline int raised(const char *flag) { return access(in_folder(flag), F_OK) == 0; }

/* A UNIX socket of `type` in the workload's folder: bound to NAME there, or connected to who is (as soon as that is there). */
static inline int bound_at(const char *name, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type, 0);
    strcpy(address.sun_path, in_folder(name));
    require(!bind(fd, (struct sockaddr *)&address, sizeof address), name);
    require(type == SOCK_DGRAM || !listen(fd, 64), name);
    return fd;
}

static inline int connected_to(const char *name, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type, 0);
    strcpy(address.sun_path, in_folder(name));
    while (connect(fd, (struct sockaddr *)&address, sizeof address)) sleep_ms(20);
    return fd;
}

/* As every process of a workload ends: with its parent. */
static inline void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

static inline void name_thread(const char *name) { prctl(PR_SET_NAME, name); }

/* A bounded queue between threads: `QUEUE(name, room)` defines one of pointers. */
struct queue { pthread_mutex_t lock; pthread_cond_t changed; size_t room, count, first; void *items[64]; };
#define QUEUE(name, size) static struct queue name = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, size, 0, 0, {NULL}}

static inline void put(struct queue *q, void *item) {
    pthread_mutex_lock(&q->lock);
    while (q->count == q->room) pthread_cond_wait(&q->changed, &q->lock);
    q->items[(q->first + q->count++) % 64] = item;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static inline void *get(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    while (q->count == 0) pthread_cond_wait(&q->changed, &q->lock);
    void *item = q->items[q->first % 64];
    q->first++, q->count--;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return item;
}

static inline void run_thread(void *(*work)(void *), void *argument) {
    pthread_t thread;
    require(!pthread_create(&thread, NULL, work, argument), "pthread_create");
}

/* As Trainer.tick: count a step, report "ready" once it is steady, and log it if asked to. */
static inline void step(void) {
    static long steps;
    static FILE *log;
    const char *rank = getenv("RANK");
    char name[32];
    snprintf(name, sizeof name, "steps-%s", rank ? rank : "0");
    if (!log && getenv("GPUTOP_STEP_LOG")) log = fopen(in_folder(name), "a");
    if (log) fprintf(log, "%.6f\n", now_s()), fflush(log);
    if (++steps == STEADY_STEPS) puts("ready"), fflush(stdout);
}
