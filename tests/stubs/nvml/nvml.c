/* libnvidia-ml.so.1 without a driver: NVML's C interface over GPUs that a control file or a simulated GPU describes.
 *
 * See README.md in this folder. -DNVML_OLD_DRIVER leaves out the symbols that drivers before R510 have not, -DNVML_OLDEST_DRIVER the
 * one that nvidia-ml-py cannot do without.
 */
#define _GNU_SOURCE
#include "sim.h"

static atomic_int started;
static struct nvmlDevice_st handles[GPUS][MIGS + 1]; /* [gpu][0]: the GPU, [gpu][1 + i]: its MIG device i */

static int gpu_count(void)
{
    return sim_map ? (int)sim_map->devices : control()->gpus;
}

static struct gpu_conf *conf_of(nvmlDevice_t device)
{
    return &control()->gpu[device->gpu];
}

static void log_call(const struct conf *conf, enum kind kind, int gpu)
{
    static int fd = -1;
    static const struct conf *opened;
    if (opened != conf) {
        opened = conf;
        fd = open(conf->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    char line[96];
    int size = snprintf(line, sizeof line, "%s %d %lld\n", kind_names[kind], gpu, now_ns(CLOCK_MONOTONIC));
    if (write(fd, line, size) != size)
        fd = -1;
}

static void pause_us(long long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (us > 0 && nanosleep(&left, &left) && errno == EINTR) {}
}

/* A hang: it ends before its time where the control file is replaced. Another file is another test's, whose faults are not for this call. */
static void hang(const struct conf *conf, long long ms)
{
    for (const struct conf *now = conf; ms > 0 && (now == conf || strcmp(now->path, conf->path)); now = control(), ms -= 10)
        pause_us((ms < 10 ? ms : 10) * 1000);
}

/* A number that looks drawn by lot: the finalizer of MurmurHash3. A plain multiple has a period, and calls made at a period of their
   own would always fail or never. */
static unsigned scattered(unsigned n)
{
    n ^= n >> 16, n *= 0x85ebca6bu;
    n ^= n >> 13, n *= 0xc2b2ae35u;
    return n ^ n >> 16;
}

/* What comes before every answer: log, delay, hang, loss, failure. GPU -1 is the system; its faults are those of GPU 0's table. */
static nvmlReturn_t enter(enum kind kind, int gpu)
{
    struct conf *conf = control();
    struct gpu_conf *own = &conf->gpu[gpu < 0 ? 0 : gpu];
    struct fault *fault = &own->faults[kind];
    if (conf->log[0])
        log_call(conf, kind, gpu);
    pause_us(fault->delay_us);
    hang(conf, atomic_exchange(&fault->hang_ms, 0));
    if (!started && kind != KIND_Init)
        return UNINITIALIZED;
    if (gpu >= 0 && (own->lost || gpu >= gpu_count()))
        return GPU_IS_LOST;
    static atomic_uint turn;
    if (fault->code && (fault->percent >= 100 || scattered(atomic_fetch_add(&turn, 1)) % 100 < (unsigned)fault->percent))
        return fault->code;
    return NVML_SUCCESS;
}

#define ENTER(kind, gpu) do { nvmlReturn_t rc_ = enter(KIND_##kind, gpu); if (rc_) return rc_; } while (0)
#define ENTER_DEVICE(kind) do { \
    if (!device) return INVALID_ARGUMENT; \
    ENTER(kind, device->gpu); \
    if (device->mig >= 0 && device->mig == conf_of(device)->mig_broken) return UNKNOWN; \
} while (0)
#define REFUSE_MIG() do { if (conf_of(device)->nmigs) return NOT_SUPPORTED; } while (0)

static nvmlReturn_t give_text(char *out, unsigned room, const char *text)
{
    if (strlen(text) + 1 > room)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* ---- start, system, enumeration */

nvmlReturn_t nvmlInit_v2(void)
{
    looked_ns = 0;
    ENTER(Init, -1);
    if (!sim_start())
        return DRIVER_NOT_LOADED;
    for (int gpu = 0; gpu < GPUS; gpu++)
        for (int i = 0; i <= MIGS; i++)
            handles[gpu][i] = (struct nvmlDevice_st){gpu, i - 1};
    atomic_fetch_add(&started, 1);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
#ifndef NVML_OLDEST_DRIVER
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
#endif
nvmlReturn_t nvmlShutdown(void)
{
    ENTER(Shutdown, -1);
    atomic_fetch_sub(&started, 1);
    return NVML_SUCCESS;
}
const char *nvmlErrorString(nvmlReturn_t code)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == code && code != UNKNOWN)
            return codes[i].name;
    return code == NVML_SUCCESS ? "Success" : code == INSUFFICIENT_SIZE ? "Insufficient Size" : "Unknown Error";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned room) { ENTER(SystemDriverVersion, -1); return give_text(out, room, control()->driver); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned room) { ENTER(SystemNVMLVersion, -1); return give_text(out, room, control()->driver); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ENTER(SystemCudaDriverVersion, -1);
    int major = 0, minor = 0;
    sscanf(control()->cuda, "%d.%d", &major, &minor);
    *out = major * 1000 + minor * 10;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) { ENTER(Count, -1); *out = gpu_count(); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    if ((int)index >= gpu_count())
        return started ? INVALID_ARGUMENT : UNINITIALIZED;
    ENTER(HandleByIndex, (int)index);
    *out = &handles[index][0];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

static void uuid_of(nvmlDevice_t device, char *out)
{
    if (device->mig < 0)
        sprintf(out, "GPU-5713c0de-0000-4000-8000-%012d", device->gpu);
    else
        sprintf(out, "MIG-5713c0de-0000-4000-8000-%06d%06d", device->gpu, device->mig);
}
static void bus_of(nvmlDevice_t device, char *out) { sprintf(out, "%08X:%02X:00.0", 0u, 0x10u + device->gpu); }

static nvmlReturn_t find_handle(enum kind kind, const char *wanted, void (*text_of)(nvmlDevice_t, char *), nvmlDevice_t *out)
{
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        for (int i = 0; i <= control()->gpu[gpu].nmigs; i++) {
            char text[64];
            text_of(&handles[gpu][i], text);
            if (strcmp(text, wanted) == 0)
                return *out = &handles[gpu][i], enter(kind, gpu);
        }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) { return find_handle(KIND_HandleByUUID, uuid, uuid_of, out); }
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *out) { return find_handle(KIND_HandleByPciBusId, bus, bus_of, out); }
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *out) { return find_handle(KIND_HandleByPciBusId, bus, bus_of, out); }

#include "identity.h"
#include "readings.h"
#include "lists.h"
