/* The simulated GPU as one process's CUDA driver sees it: devices mapped from $GPUTOP_SIMGPU, and streams as timelines.
 *
 * A launch books its length at the end of its stream's timeline and of the device's, so contexts share a GPU by turns as
 * real ones do. Work that may begin only later (behind a copy, or in a collective that waits for a peer) is queued and
 * booked by the stream's own thread when its time comes: the simulated GPU never claims to be busy ahead of time.
 */
#ifndef GPUTOP_TIMELINE_H
#define GPUTOP_TIMELINE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "simgpu.h"

#define SMS 132u                    /* an H100's: a grid of fewer blocks leaves the rest idle */
#define QUEUE 1024u                 /* launches a stream holds before the next one blocks, as in the real driver */
#define SLICE_NS 1000000ull         /* collectives are booked in slices of this; shorter copies are counted at once */
#define COPY_SLICE_NS 10000000ull   /* long copies are counted in slices of this */
#define TIMER_SLACK_NS 70000ull     /* a sleep may end this late: spin for the rest */
#define LINK_BYTES_PER_NS 54.0      /* PCIe 5 x16, as an H200 copies from pinned memory */
#define GAP_NS 20000ull             /* shorter gaps between copy and kernel are not worth a queue */

enum wait_mode { WAIT_BLOCK, WAIT_SPIN, WAIT_YIELD, WAIT_POLL };
#define POLL_NS 100000ull

struct device {
    int index;
    struct simgpu_device *gpu;
    struct simgpu_proc *proc;
};

/* Work whose start lies in the future. */
struct work {
    uint64_t start_ns, length_ns, bytes, engine_ns;
    uint32_t weight_ppm;
    bool to_device, from_device;
    volatile uint64_t *arrived;     /* a collective: it ends when *arrived >= target, and spins on the GPU until then */
    uint64_t target;
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct device *device;
    uint64_t end_ns;                /* when everything given to it so far is done, as far as is known */
    uint64_t launched[QUEUE];       /* ends of the latest launches */
    unsigned launches;
    struct work queue[QUEUE];
    unsigned first, queued;
    bool threaded;
};

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline void sleep_until(uint64_t t) {
    struct timespec at = {(time_t)(t / 1000000000ull), (long)(t % 1000000000ull)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

static void wait_until(uint64_t t, enum wait_mode mode) {
    if (mode == WAIT_BLOCK && t > now_ns() + TIMER_SLACK_NS) sleep_until(t - TIMER_SLACK_NS);
    while (now_ns() < t) {
        if (mode == WAIT_YIELD) sched_yield();
        if (mode == WAIT_POLL) sleep_until(now_ns() + POLL_NS);
    }
}

/* Devices */

static struct simgpu *simgpu_open(void) {
    const char *path = getenv("GPUTOP_SIMGPU");
    int fd = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) || (st.st_size < (off_t)sizeof(struct simgpu) && ftruncate(fd, sizeof(struct simgpu))))) return NULL;
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    struct simgpu *sim = mmap(NULL, sizeof *sim, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (fd >= 0) close(fd);
    if (sim == MAP_FAILED) return NULL;
    if (!sim->magic) {
        sim->devices = sim->devices ? sim->devices : 1;
        sim->version = SIMGPU_VERSION;
        sim->magic = SIMGPU_MAGIC;
    }
    return sim->magic == SIMGPU_MAGIC && sim->version == SIMGPU_VERSION ? sim : NULL;
}

/* This process's slot in the device's list; slots of the dead are free. */
static struct simgpu_proc *register_process(struct simgpu_device *gpu) {
    uint32_t self = (uint32_t)getpid();
    for (unsigned i = 0; i < SIMGPU_PROCS; i++) {
        struct simgpu_proc *slot = &gpu->procs[i];
        uint32_t owner = atomic_load(&slot->pid);
        if (owner == self) return slot;
        if (owner && !(kill((pid_t)owner, 0) && errno == ESRCH)) continue;
        if (!atomic_compare_exchange_strong(&slot->pid, &owner, self)) continue;
        atomic_store(&slot->mem_bytes, 0);
        atomic_store(&slot->busy_ns, 0);
        return slot;
    }
    return NULL;
}

/* Book `length` from `start` or when the device is free; returns when it ends. */
static uint64_t book(struct device *d, uint64_t start, uint64_t length, uint32_t weight_ppm) {
    uint64_t until = atomic_load(&d->gpu->busy_until_ns), end;
    do end = later(until, start) + length;
    while (!atomic_compare_exchange_weak(&d->gpu->busy_until_ns, &until, end));
    atomic_fetch_add(&d->gpu->busy_ns, length);
    atomic_fetch_add(&d->gpu->sm_busy_ns, (uint64_t)((double)length * weight_ppm / 1e6));
    atomic_store(&d->gpu->sm_weight_ppm, weight_ppm);
    if (d->proc) atomic_fetch_add(&d->proc->busy_ns, length);
    return end;
}

/* The part of a copy that lies between two of its bytes. */
static void count_bytes(struct device *d, const struct work *w, uint64_t from, uint64_t to) {
    if (w->to_device) atomic_fetch_add(&d->gpu->h2d_bytes, to - from);
    if (w->from_device) atomic_fetch_add(&d->gpu->d2h_bytes, to - from);
    atomic_fetch_add(&d->gpu->copy_ns, (uint64_t)((double)w->engine_ns * (double)(to - from) / (double)w->bytes));
}

/* Queued work: one thread per stream, started when first needed */

static uint64_t run_copy(struct device *d, const struct work *w, enum wait_mode mode) {
    uint64_t end = w->start_ns + w->length_ns, counted = 0;
    for (uint64_t t = w->start_ns; t < end; t += COPY_SLICE_NS) {
        uint64_t upto = end - t < COPY_SLICE_NS ? end : t + COPY_SLICE_NS;
        wait_until(upto, mode);
        uint64_t sum = (uint64_t)((double)w->bytes * (double)(upto - w->start_ns) / (double)w->length_ns);
        count_bytes(d, w, counted, sum);
        counted = sum;
    }
    return end;
}

static uint64_t run_collective(struct device *d, const struct work *w) {
    uint64_t t = later(w->start_ns, now_ns());
    while (*w->arrived < w->target) {
        uint64_t missed = atomic_load(&d->gpu->busy_until_ns) <= t ? now_ns() - t : 0; /* it spins on, however late we wake */
        t = missed < COPY_SLICE_NS * 100 && missed > 0 ? book(d, t, missed + SLICE_NS, w->weight_ppm) : book(d, later(t, now_ns()), SLICE_NS, w->weight_ppm);
        sleep_until(t);
    }
    return book(d, later(t, now_ns()), w->length_ns, w->weight_ppm);
}

static uint64_t run_work(struct device *d, const struct work *w) {
    if (w->bytes) return run_copy(d, w, WAIT_BLOCK);
    if (w->start_ns > now_ns()) sleep_until(w->start_ns);
    return w->arrived ? run_collective(d, w) : book(d, w->start_ns, w->length_ns, w->weight_ppm);
}

static void *stream_thread(void *arg) {
    struct stream *s = arg;
    pthread_setname_np(pthread_self(), "cuda-EvtHandlr");
    pthread_mutex_lock(&s->lock);
    for (uint64_t end = 0;;) {
        while (!s->queued) pthread_cond_wait(&s->changed, &s->lock);
        struct work w = s->queue[s->first];
        pthread_mutex_unlock(&s->lock);
        w.start_ns = later(w.start_ns, end);
        end = run_work(s->device, &w);
        pthread_mutex_lock(&s->lock);
        s->end_ns = later(s->end_ns, end);
        s->first = (s->first + 1) % QUEUE;
        s->queued--;
        pthread_cond_broadcast(&s->changed);
    }
    return NULL;
}

/* With the lock held. */
static void enqueue(struct stream *s, struct work w) {
    while (s->queued == QUEUE) pthread_cond_wait(&s->changed, &s->lock);
    s->queue[(s->first + s->queued++) % QUEUE] = w;
    s->end_ns = w.start_ns + w.length_ns;
    if (!s->threaded) {
        pthread_t thread;
        s->threaded = !pthread_create(&thread, NULL, stream_thread, s);
        if (s->threaded) pthread_detach(thread);
    }
    pthread_cond_broadcast(&s->changed);
}

static struct stream *stream_new(struct device *d) {
    struct stream *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->device = d;
    return s;
}

/* Waits until the stream is done. */
static void stream_drain(struct stream *s, enum wait_mode mode) {
    pthread_mutex_lock(&s->lock);
    while (s->queued) pthread_cond_wait(&s->changed, &s->lock);
    uint64_t end = s->end_ns;
    pthread_mutex_unlock(&s->lock);
    wait_until(end, mode);
}

static bool stream_done(struct stream *s) {
    pthread_mutex_lock(&s->lock);
    bool done = !s->queued && s->end_ns <= now_ns();
    pthread_mutex_unlock(&s->lock);
    return done;
}

static void stream_launch(struct stream *s, uint64_t length, uint32_t weight_ppm, volatile uint64_t *arrived, uint64_t target) {
    pthread_mutex_lock(&s->lock);
    uint64_t *oldest = &s->launched[s->launches++ % QUEUE];
    if (*oldest > now_ns()) wait_until(*oldest, WAIT_SPIN);
    uint64_t free = later(now_ns(), atomic_load(&s->device->gpu->busy_until_ns));
    if (arrived || s->queued || s->end_ns > free + GAP_NS)
        enqueue(s, (struct work){.start_ns = later(now_ns(), s->end_ns), .length_ns = length, .weight_ppm = weight_ppm,
                                 .arrived = arrived, .target = target});
    else
        s->end_ns = book(s->device, later(now_ns(), s->end_ns), length, weight_ppm);
    *oldest = s->end_ns;
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_add(&s->device->gpu->launches, 1);
}

static struct work copy_of(uint64_t bytes, double bytes_per_ns, bool staged, bool to_device, bool from_device) {
    uint64_t length = (uint64_t)((double)bytes / bytes_per_ns) + 2000;
    uint64_t engine = staged ? (uint64_t)((double)bytes / LINK_BYTES_PER_NS) : length;
    return (struct work){.length_ns = length, .bytes = bytes, .engine_ns = engine, .to_device = to_device, .from_device = from_device};
}

/* A copy the caller waits for, first in `before` for the stream, then in `during`. */
static void stream_copy(struct stream *s, struct work copy, enum wait_mode before, enum wait_mode during) {
    stream_drain(s, before);
    copy.start_ns = now_ns();
    uint64_t end = run_copy(s->device, &copy, during);
    pthread_mutex_lock(&s->lock);
    s->end_ns = later(s->end_ns, end);
    pthread_mutex_unlock(&s->lock);
}

/* A copy from or to pinned memory, behind what the stream already has. */
static void stream_copy_async(struct stream *s, struct work copy) {
    pthread_mutex_lock(&s->lock);
    copy.start_ns = later(now_ns(), s->end_ns);
    if (s->queued || copy.length_ns > SLICE_NS) {
        enqueue(s, copy);
    } else {
        s->end_ns = copy.start_ns + copy.length_ns;
        count_bytes(s->device, &copy, 0, copy.bytes);
    }
    pthread_mutex_unlock(&s->lock);
}

#endif
