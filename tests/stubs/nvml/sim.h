/* The simulated GPU of $GPUTOP_SIMGPU as a driver would see it: utilization, of kernels and of copies as an H200's, over windows of 1/6 s (or $GPUTOP_NVML_WINDOW_MS, up to
 * 1000 as on some GPUs), of which 120 are kept. */
#ifndef NVML_STUB_SIM_H
#define NVML_STUB_SIM_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control.h"
#include "simgpu.h"

#define REFRESH_US 166667LL
#define KEPT 120

struct window { long long wall_us; unsigned util_pct; double sm_share, tx_bytes_per_s, rx_bytes_per_s; };
struct totals { unsigned long long ns, done, sm_done, tx, rx, copied; };

static struct simgpu *sim_map;
static struct {
    struct totals last, power_from;
    double power_share;
    struct window windows[KEPT];
    unsigned count; /* windows ever closed */
    unsigned long long proc_busy[SIMGPU_PROCS];
    unsigned proc_pct[SIMGPU_PROCS];
} sim[SIMGPU_DEVICES];
static long long sim_window_us = REFRESH_US;
static pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned long long done_by(unsigned long long booked, unsigned long long ahead)
{
    return booked > ahead ? booked - ahead : 0;
}

static struct totals sim_totals(int gpu)
{
    struct simgpu_device *dev = &sim_map->dev[gpu];
    unsigned long long now = now_ns(CLOCK_MONOTONIC), until = dev->busy_until_ns, ahead = until > now ? until - now : 0;
    return (struct totals){now, done_by(dev->busy_ns, ahead), done_by(dev->sm_busy_ns, ahead * dev->sm_weight_ppm / 1000000), dev->d2h_bytes, dev->h2d_bytes, dev->copy_ns};
}

static double share(unsigned long long newer, unsigned long long older, double ns)
{
    double part = newer > older && ns > 0 ? (newer - older) / ns : 0;
    return part > 1 ? 1 : part;
}

static void close_window(int gpu)
{
    struct totals now = sim_totals(gpu), last = sim[gpu].last;
    double ns = now.ns - last.ns, busy = share(now.done, last.done, ns) + share(now.copied, last.copied, ns);
    sim[gpu].windows[sim[gpu].count++ % KEPT] = (struct window){
        now_ns(CLOCK_REALTIME) / 1000, (unsigned)(100 * (busy < 1 ? busy : 1) + 0.5), share(now.sm_done, last.sm_done, ns),
        (now.tx - last.tx) / (ns / 1e9), (now.rx - last.rx) / (ns / 1e9)};
    sim[gpu].last = now;
    for (int slot = 0; slot < SIMGPU_PROCS; slot++) {
        unsigned long long busy = sim_map->dev[gpu].procs[slot].busy_ns;
        sim[gpu].proc_pct[slot] = (unsigned)(100 * share(busy, sim[gpu].proc_busy[slot], ns) + 0.5);
        sim[gpu].proc_busy[slot] = busy;
    }
}

static void *sim_sampler(void *unused)
{
    (void)unused;
    for (long long next = now_ns(CLOCK_MONOTONIC);;) {
        next += sim_window_us * 1000;
        struct timespec at = {next / 1000000000, next % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
        pthread_mutex_lock(&sim_lock);
        for (unsigned gpu = 0; gpu < sim_map->devices; gpu++)
            close_window(gpu);
        pthread_mutex_unlock(&sim_lock);
    }
    return NULL;
}

static struct simgpu *map_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    struct simgpu *map = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof *map)
        map = mmap(NULL, sizeof *map, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED || map->magic != SIMGPU_MAGIC || map->version != SIMGPU_VERSION || map->devices > SIMGPU_DEVICES)
        return NULL;
    return map;
}

/* True: no simulated GPU is asked for, or it is mapped and sampled. */
static int sim_start(void)
{
    const char *path = getenv("GPUTOP_SIMGPU"), *window_ms = getenv("GPUTOP_NVML_WINDOW_MS");
    if (!path || sim_map)
        return 1;
    if (window_ms && atoll(window_ms) > 0)
        sim_window_us = atoll(window_ms) * 1000;
    pthread_mutex_lock(&sim_lock);
    struct simgpu *map = sim_map ? sim_map : map_file(path);
    if (map && !sim_map) {
        sim_map = map;
        for (unsigned gpu = 0; gpu < map->devices; gpu++) {
            sim[gpu].last = sim[gpu].power_from = sim_totals(gpu);
            for (int slot = 0; slot < SIMGPU_PROCS; slot++)
                sim[gpu].proc_busy[slot] = map->dev[gpu].procs[slot].busy_ns;
        }
        pthread_t thread;
        if (pthread_create(&thread, NULL, sim_sampler, NULL) == 0)
            pthread_detach(thread);
    }
    pthread_mutex_unlock(&sim_lock);
    return map != NULL;
}

/* Share of SM time since the call before, over at least 25 ms: what an instantaneous power reading follows. */
static double sim_power_share(int gpu)
{
    pthread_mutex_lock(&sim_lock);
    struct totals now = sim_totals(gpu), from = sim[gpu].power_from;
    if (now.ns - from.ns >= 25000000) {
        sim[gpu].power_share = share(now.sm_done, from.sm_done, now.ns - from.ns);
        sim[gpu].power_from = now;
    }
    double value = sim[gpu].power_share;
    pthread_mutex_unlock(&sim_lock);
    return value;
}

/* Copies up to `room` of the newest windows, oldest first; the number of them. */
static int sim_windows(int gpu, struct window *out, int room)
{
    pthread_mutex_lock(&sim_lock);
    unsigned count = sim[gpu].count, kept = count < KEPT ? count : KEPT, n = kept < (unsigned)room ? kept : (unsigned)room;
    for (unsigned i = 0; i < n; i++)
        out[i] = sim[gpu].windows[(count - n + i) % KEPT];
    pthread_mutex_unlock(&sim_lock);
    return n;
}

static int alive(unsigned pid)
{
    return pid && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

/* The living processes of the mapping, in the control file's terms. */
static int sim_procs(int gpu, struct proc_conf *out, int room)
{
    int n = 0;
    for (int slot = 0; slot < SIMGPU_PROCS && n < room; slot++) {
        struct simgpu_proc *proc = &sim_map->dev[gpu].procs[slot];
        unsigned pid = proc->pid;
        if (alive(pid))
            out[n++] = (struct proc_conf){pid, proc->mem_bytes >> 20, sim[gpu].proc_pct[slot], 'C', -1};
    }
    return n;
}

#endif
