/* What the stub's GPUs are like and how they misbehave: defaults, then the control file named by $GPUTOP_NVML_CONTROL.
 *
 * The file is read again when it changes (looked at no more than every 5 ms). One setting a line, `key value`; a key may
 * begin with `gpuN.` to mean that GPU alone; `#` begins a comment. README.md in this folder lists the keys.
 */
#ifndef NVML_STUB_CONTROL_H
#define NVML_STUB_CONTROL_H

#include <fnmatch.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "types.h"

#define GPUS 64
#define PROCS 256
#define MIGS 8
#define FIELDS 400

/* The kinds of calls: NVML's names without nvml, nvmlDevice, nvmlDeviceGet and without the version. */
#define KINDS(X) \
    X(Init) X(Shutdown) X(SystemDriverVersion) X(SystemCudaDriverVersion) X(SystemNVMLVersion) X(Count) X(HandleByIndex) \
    X(HandleByPciBusId) X(HandleByUUID) X(Index) X(Name) X(UUID) X(Serial) X(PciInfo) X(Architecture) X(CudaComputeCapability) \
    X(MinorNumber) X(Brand) X(VbiosVersion) X(PersistenceMode) X(DisplayActive) X(DisplayMode) X(ComputeMode) X(UtilizationRates) \
    X(Samples) X(MemoryInfo) X(MemoryInfo_v1) X(BAR1MemoryInfo) X(PowerUsage) X(EnforcedPowerLimit) X(PowerManagementLimit) \
    X(PowerManagementDefaultLimit) X(PowerManagementLimitConstraints) X(TotalEnergyConsumption) X(Temperature) \
    X(TemperatureThreshold) X(ClockInfo) X(MaxClockInfo) X(CurrentClocksEventReasons) X(PerformanceState) X(FanSpeed) X(NumFans) \
    X(PcieThroughput) X(CurrPcieLinkGeneration) X(CurrPcieLinkWidth) X(MaxPcieLinkGeneration) X(MaxPcieLinkWidth) \
    X(NvLinkState) X(EncoderUtilization) X(DecoderUtilization) X(EccMode) X(TotalEccErrors) X(RetiredPages) X(RemappedRows) X(GpuFabricInfoV) \
    X(ComputeRunningProcesses) X(GraphicsRunningProcesses) X(MPSComputeRunningProcesses) X(ProcessUtilization) X(FieldValues) \
    X(MigMode) X(MaxMigDeviceCount) X(MigDeviceHandleByIndex) X(DeviceHandleFromMigDeviceHandle) X(IsMigDeviceHandle) \
    X(GpuInstanceId) X(ComputeInstanceId) X(Attributes) X(GpmQueryDeviceSupport) X(GpmSampleAlloc) X(GpmSampleFree) \
    X(GpmSampleGet) X(GpmMigSampleGet) X(GpmMetricsGet) X(EventSetCreate) X(EventSetFree) X(EventSetWait) X(RegisterEvents) \
    X(SupportedEventTypes) X(DriverModel) X(ConfComputeMemSizeInfo) X(RunningProcessDetailList)

#define KIND_ENUM(name) KIND_##name,
#define KIND_NAME(name) #name,
enum kind { KINDS(KIND_ENUM) KIND_COUNT };
static const char *const kind_names[] = {KINDS(KIND_NAME)};

struct proc_conf { unsigned pid; long long mem_mib; unsigned sm_pct; char kind; int instance; };
struct mig_conf { char profile[32]; unsigned instance, sms, active_pct, util_pct; long long total_mib, used_mib; };

struct fault {
    long long delay_us;
    atomic_llong hang_ms; /* taken by the first call that meets it */
    int code, percent;
};

/* What one field of FieldValues says instead of what it would. */
struct odd_field { int is_odd, type; nvmlValue_t value; };

/* Plain numbers of one GPU: key of the control file, default. */
#define NUMBERS(X) \
    X(util, 0) X(util_low, -1) X(wave_ms, 0) X(mem_util, 0) X(mem_total_mib, 143771) X(mem_reserved_mib, 536) X(mem_used_mib, -1) \
    X(power_mw, -1) X(power_avg_mw, -1) X(power_limit_mw, 700000) X(power_default_mw, 700000) X(power_max_mw, 700000) \
    X(power_idle_mw, 75000) X(temp, 40) X(mem_temp, 45) X(sm_clock, 1980) X(mem_clock, 3201) X(sm_clock_max, 1980) \
    X(mem_clock_max, 3201) X(throttle, 0) X(pstate, 0) X(fan, 30) X(pcie_gen, 5) X(pcie_gen_max, 5) X(pcie_width, 16) \
    X(pcie_width_max, 16) X(pcie_tx_mb_s, 0) X(pcie_rx_mb_s, 0) X(pcie_replays, 0) X(pcie_errors, 0) X(nvlinks, 18) X(nvlink_mb_s, 0) X(enc, 0) X(dec, 0) \
    X(ecc_corrected, 0) X(ecc_uncorrected, 0) X(retired, 0) X(remapped, 0) X(remap_pending, 0) X(remap_failed, 0) X(compute_mode, 0) X(arch, 9) X(gpm, 1) X(gpm_pcie, 1) X(gpm_strict, 0) X(gr_active, -1) \
    X(sm_active, 0) X(sm_occupancy, 0) X(tensor, 0) X(dram, 0) X(lost, 0) X(xid, 0) X(stale_samples, 0) X(samples_ahead_ms, 0) \
    X(long_procs, 0) X(procs_wanted, 0) X(nvlinks_refused, 0) X(nvlink_broken, -1) X(nvlink_absent, -1) X(mig_broken, -1) X(bad_link, 0) \
    X(link_replays, 0) X(link_recoveries, 0) X(link_crc, 0) X(link_ber, 0) X(slowed_power_ms, 0) X(slowed_heat_ms, 0) X(slowed_brake_ms, 0) \
    X(smoothing, 0) X(recovery_action, 0) X(c2c_links, 0) X(c2c_tx_mb_s, 0) X(c2c_rx_mb_s, 0) X(fabric_state, 0) X(fabric_status, 0) X(fabric_mask, 0)

#define NUMBER_MEMBER(name, value) long long name;
struct gpu_conf {
    NUMBERS(NUMBER_MEMBER)
    char name[64];
    int nprocs, nmigs;
    struct proc_conf procs[PROCS];
    struct mig_conf migs[MIGS];
    struct fault faults[KIND_COUNT];
    int field_errors[FIELDS];
    struct odd_field odd_fields[FIELDS];
};

struct conf {
    const char *path;
    int gpus;
    char driver[80], cuda[16], log[512];
    struct gpu_conf gpu[GPUS];
};

#define NUMBER_OFFSET(name, value) {#name, offsetof(struct gpu_conf, name), value},
static const struct { const char *key; size_t offset; long long value; } numbers[] = {NUMBERS(NUMBER_OFFSET)};
static const struct { const char *name; int code; } codes[] = {
    {"NOT_SUPPORTED", NOT_SUPPORTED}, {"NO_PERMISSION", NO_PERMISSION}, {"DRIVER_NOT_LOADED", DRIVER_NOT_LOADED},
    {"LIB_RM_VERSION_MISMATCH", LIB_RM_VERSION_MISMATCH}, {"GPU_IS_LOST", GPU_IS_LOST}, {"RESET_REQUIRED", RESET_REQUIRED},
    {"UNKNOWN", UNKNOWN}, {"NOT_FOUND", NOT_FOUND}, {"TIMEOUT", TIMEOUT}, {"FUNCTION_NOT_FOUND", FUNCTION_NOT_FOUND},
    {"UNINITIALIZED", UNINITIALIZED}, {"INVALID_ARGUMENT", INVALID_ARGUMENT}, {"MEMORY", MEMORY},
};

static long long now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int parse_code(const char *text)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(text, codes[i].name) == 0)
            return codes[i].code;
    return atoi(text);
}

/* pid:MiB[:sm%[:kind[:instance]]], comma separated; MiB `-` is "not available" */
static void parse_procs(struct gpu_conf *gpu, char *value)
{
    gpu->nprocs = 0;
    for (char *save, *item = strtok_r(value, ", ", &save); item && gpu->nprocs < PROCS; item = strtok_r(NULL, ", ", &save)) {
        struct proc_conf *proc = &gpu->procs[gpu->nprocs++];
        char mem[32] = "0";
        *proc = (struct proc_conf){.kind = 'C', .instance = -1};
        sscanf(item, "%u:%31[^:]:%u:%c:%d", &proc->pid, mem, &proc->sm_pct, &proc->kind, &proc->instance);
        proc->mem_mib = mem[0] == '-' ? -1 : atoll(mem);
    }
}

/* profile:instance:total MiB:used MiB:SMs:active %[:util %], comma separated */
static void parse_migs(struct gpu_conf *gpu, char *value)
{
    gpu->nmigs = 0;
    for (char *save, *item = strtok_r(value, ", ", &save); item && gpu->nmigs < MIGS; item = strtok_r(NULL, ", ", &save)) {
        struct mig_conf *mig = &gpu->migs[gpu->nmigs++];
        *mig = (struct mig_conf){.instance = gpu->nmigs};
        if (sscanf(item, "%31[^:]:%u:%lld:%lld:%u:%u:%u", mig->profile, &mig->instance, &mig->total_mib, &mig->used_mib, &mig->sms,
                   &mig->active_pct, &mig->util_pct) < 7)
            mig->util_pct = mig->active_pct;
    }
}

/* dbl:number, uint:number, ull:number, sll:number or sint:number */
static void set_field(struct odd_field *field, const char *text)
{
    static const char *const kinds[] = {"dbl", "uint", "", "ull", "sll", "sint"}; /* by nvmlValueType_t */
    const char *number = strchr(text, ':') + 1;
    *field = (struct odd_field){.is_odd = 1};
    while (strncmp(text, kinds[field->type], strlen(kinds[field->type])) != 0 || !*kinds[field->type])
        field->type++;
    if (field->type == TYPE_DOUBLE)
        field->value.dVal = atof(number);
    else if (field->type == TYPE_UINT || field->type == TYPE_SINT)
        field->value.uiVal = (unsigned)strtoll(number, NULL, 0);
    else
        field->value.ullVal = *number == '-' ? (unsigned long long)atoll(number) : strtoull(number, NULL, 0);
}

static void set_fault(struct gpu_conf *gpu, const char *what, const char *pattern, const char *value)
{
    unsigned field;
    if (sscanf(pattern, "Field%u", &field) == 1 && field < FIELDS && strcmp(what, "error") == 0) {
        gpu->field_errors[field] = parse_code(value);
        return;
    }
    if (strcmp(what, "value") == 0) {
        if (sscanf(pattern, "Field%u", &field) == 1 && field < FIELDS)
            set_field(&gpu->odd_fields[field], value);
        return;
    }
    const char *percent = strchr(value, '%');
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct fault *fault = &gpu->faults[kind];
        /* a pattern never breaks the way in: a call that starts up is meant by its own name only */
        int way_in = kind == KIND_Init || kind == KIND_Shutdown || kind == KIND_HandleByIndex || kind == KIND_Count;
        if (fnmatch(pattern, kind_names[kind], 0) != 0 || (way_in && strcmp(pattern, kind_names[kind]) != 0))
            continue;
        if (strcmp(what, "delay") == 0)
            fault->delay_us = atoll(value);
        else if (strcmp(what, "hang") == 0)
            fault->hang_ms = atoll(value);
        else
            fault->percent = percent ? atoi(value) : 100, fault->code = parse_code(percent ? percent + 1 : value);
    }
}

static void set_gpu(struct gpu_conf *gpu, const char *key, const char *value)
{
    char copy[16384];
    snprintf(copy, sizeof copy, "%s", value);
    const char *dot = strchr(key, '.');
    if (dot) {
        char what[16];
        snprintf(what, sizeof what, "%.*s", (int)(dot - key), key);
        set_fault(gpu, what, dot + 1, value);
    } else if (strcmp(key, "procs") == 0)
        parse_procs(gpu, copy);
    else if (strcmp(key, "mig") == 0)
        parse_migs(gpu, copy);
    else if (strcmp(key, "name") == 0)
        snprintf(gpu->name, sizeof gpu->name, "%s", value);
    else {
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (strcmp(key, numbers[i].key) == 0) {
                *(long long *)((char *)gpu + numbers[i].offset) = atoll(value);
                return;
            }
        fprintf(stderr, "nvml stub: unknown key %s\n", key);
    }
}

static void set_line(struct conf *conf, char *line)
{
    char key[128], value[16384] = "";
    line[strcspn(line, "#\n")] = 0;
    if (sscanf(line, "%127s %16383[^\n]", key, value) < 1)
        return;
    int only;
    if (strcmp(key, "gpus") == 0)
        conf->gpus = atoi(value) > GPUS ? GPUS : atoi(value);
    else if (strcmp(key, "driver") == 0)
        snprintf(conf->driver, sizeof conf->driver, "%.79s", value);
    else if (strcmp(key, "cuda") == 0)
        snprintf(conf->cuda, sizeof conf->cuda, "%.15s", value);
    else if (strcmp(key, "log") == 0)
        snprintf(conf->log, sizeof conf->log, "%.511s", value);
    else if (sscanf(key, "gpu%d.", &only) == 1 && strchr(key, '.') && only >= 0 && only < GPUS)
        set_gpu(&conf->gpu[only], strchr(key, '.') + 1, value);
    else
        for (int gpu = 0; gpu < GPUS; gpu++)
            set_gpu(&conf->gpu[gpu], key, value);
}

static struct conf *read_conf(const char *path)
{
    struct conf *conf = calloc(1, sizeof *conf);
    conf->path = strdup(path ? path : "");
    conf->gpus = 2;
    strcpy(conf->driver, "580.95.05");
    strcpy(conf->cuda, "13.0");
    for (int gpu = 0; gpu < GPUS; gpu++) {
        strcpy(conf->gpu[gpu].name, "NVIDIA H200");
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            *(long long *)((char *)&conf->gpu[gpu] + numbers[i].offset) = numbers[i].value;
    }
    FILE *file = path ? fopen(path, "r") : NULL;
    static char line[32768];
    while (file && fgets(line, sizeof line, file))
        set_line(conf, line);
    if (file)
        fclose(file);
    return conf;
}

static _Atomic(struct conf *) current_conf;
static pthread_mutex_t conf_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_llong looked_ns; /* 0 makes the next call look again */

/* The settings that hold now. Replaced ones are never freed: another call may still read them. */
static struct conf *control(void)
{
    static struct stat seen;
    long long now = now_ns(CLOCK_MONOTONIC);
    struct conf *conf = atomic_load(&current_conf);
    if (conf && now - atomic_load(&looked_ns) < 5000000)
        return conf;
    pthread_mutex_lock(&conf_lock);
    const char *path = getenv("GPUTOP_NVML_CONTROL");
    struct stat st = {0};
    if (path)
        stat(path, &st);
    conf = atomic_load(&current_conf);
    if (!conf || st.st_mtim.tv_sec != seen.st_mtim.tv_sec || st.st_mtim.tv_nsec != seen.st_mtim.tv_nsec || st.st_ino != seen.st_ino) {
        seen = st;
        conf = read_conf(path);
        atomic_store(&current_conf, conf);
    }
    atomic_store(&looked_ns, now);
    pthread_mutex_unlock(&conf_lock);
    return conf;
}

#endif
