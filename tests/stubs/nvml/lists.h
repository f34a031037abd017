/* Processes, events and GPM. */

static int procs_of(int gpu, struct proc_conf *out)
{
    if (sim_map)
        return sim_procs(gpu, out, PROCS);
    struct gpu_conf *conf = &control()->gpu[gpu];
    memcpy(out, conf->procs, sizeof *out * (size_t)conf->nprocs);
    return conf->nprocs;
}

/* Version 1 has no instances; 2 and 3 share a layout, but for a few releases of R535. */
static nvmlReturn_t list_procs(nvmlDevice_t device, enum kind call, char kind, int version, unsigned *count, void *out)
{
    if (!device)
        return INVALID_ARGUMENT;
    nvmlReturn_t code = enter(call, device->gpu);
    if (code)
        return code;
    struct proc_conf all[PROCS];
    unsigned n = 0, room = *count;
    int total = procs_of(device->gpu, all);
    for (int i = 0; i < total; i++)
        if (all[i].kind == kind && (device->mig < 0 || all[i].instance == (int)conf_of(device)->migs[device->mig].instance))
            all[n++] = all[i];
    *count = n;
    if (conf_of(device)->procs_wanted)
        return *count = (unsigned)conf_of(device)->procs_wanted, INSUFFICIENT_SIZE;
    if (n > room || (n && !out))
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++) {
        unsigned long long bytes = all[i].mem_mib < 0 ? ~0ULL : (unsigned long long)all[i].mem_mib << 20;
        nvmlProcessInfo_v2_t info = {all[i].pid, bytes, (unsigned)all[i].instance, all[i].instance < 0 ? ~0u : 0};
        if (version == 1)
            ((nvmlProcessInfo_v1_t *)out)[i] = (nvmlProcessInfo_v1_t){all[i].pid, bytes};
        else if (version == 3 && conf_of(device)->long_procs)
            ((nvmlProcessInfo_r535_t *)out)[i] = (nvmlProcessInfo_r535_t){info, 0};
        else
            ((nvmlProcessInfo_v2_t *)out)[i] = info;
    }
    return NVML_SUCCESS;
}
#define LIST(name, suffix, kind, version) \
    nvmlReturn_t nvmlDeviceGet##name##RunningProcesses##suffix(nvmlDevice_t device, unsigned *count, void *out) \
    { \
        return list_procs(device, KIND_##name##RunningProcesses, kind, version, count, out); \
    }
LIST(Compute, , 'C', 1) LIST(Graphics, , 'G', 1) LIST(MPSCompute, , 'M', 1)
LIST(Compute, _v2, 'C', 2) LIST(Graphics, _v2, 'G', 2) LIST(MPSCompute, _v2, 'M', 2)
#ifndef NVML_OLD_DRIVER
LIST(Compute, _v3, 'C', 3) LIST(Graphics, _v3, 'G', 3) LIST(MPSCompute, _v3, 'M', 3)
/* Without this symbol nvitop takes the library for the one release whose _v3 had a longer layout. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, void *out) { (void)out; ENTER_DEVICE(RunningProcessDetailList); return NOT_SUPPORTED; }
#endif

/* Processes that used the SMs since `seen`; those that did not are left out, as NVML does. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count, unsigned long long seen)
{
    ENTER_DEVICE(ProcessUtilization);
    REFUSE_MIG();
    struct proc_conf all[PROCS];
    int total = procs_of(device->gpu, all);
    if (!out)
        return *count = 100, INSUFFICIENT_SIZE;
    unsigned given = 0;
    unsigned long long wall_us = (unsigned long long)newest_window(device->gpu).wall_us;
    for (int i = 0; i < total && wall_us > seen; i++) {
        if (!all[i].sm_pct)
            continue;
        if (given == *count)
            return *count = PROCS, INSUFFICIENT_SIZE;
        out[given++] = (nvmlProcessUtilizationSample_t){.pid = all[i].pid, .timeStamp = wall_us, .smUtil = all[i].sm_pct, .memUtil = all[i].sm_pct / 2};
    }
    *count = given;
    return given ? NVML_SUCCESS : NOT_FOUND;
}

/* ---- events: the only one is an Xid, when the control file's number changes to another than 0 */

struct event_set { struct nvmlDevice_st *devices[GPUS]; long long told[GPUS]; };

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) { ENTER(EventSetCreate, -1); *out = calloc(1, sizeof **out); return NVML_SUCCESS; }
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { ENTER(EventSetFree, -1); free(set); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *out) { ENTER_DEVICE(SupportedEventTypes); *out = 0x8; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER_DEVICE(RegisterEvents);
    if (types & ~0x8ULL)
        return NOT_SUPPORTED;
    set->devices[device->gpu] = device;
    set->told[device->gpu] = conf_of(device)->xid;
    return NVML_SUCCESS;
}
static int next_event(nvmlEventSet_t set, nvmlEventData_t *out)
{
    for (int gpu = 0; gpu < GPUS; gpu++) {
        long long xid = control()->gpu[gpu].xid;
        if (!set->devices[gpu] || set->told[gpu] == xid)
            continue;
        set->told[gpu] = xid;
        if (xid == 0)
            continue;
        *out = (nvmlEventData_t){set->devices[gpu], 0x8, (unsigned long long)xid, ~0u, ~0u};
        return 1;
    }
    return 0;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    int only = 0;
    while (only < GPUS - 1 && !set->devices[only])
        only++;
    nvmlReturn_t code = enter(KIND_EventSetWait, only);
    if ((code == GPU_IS_LOST || code == RESET_REQUIRED) && next_event(set, out))
        return NVML_SUCCESS; /* what was queued before */
    if (code)
        return code;
    for (unsigned waited = 0;; waited += 10) {
        if (next_event(set, out))
            return NVML_SUCCESS;
        if (waited >= timeout_ms)
            return TIMEOUT;
        pause_us(10000);
    }
}
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms) { return nvmlEventSetWait_v2(set, out, timeout_ms); }

/* ---- GPM, Hopper and later */

#ifndef NVML_OLD_DRIVER
struct gpm_sample { int gpu, instance; struct totals at; };

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out)
{
    ENTER_DEVICE(GpmQueryDeviceSupport);
    out->isSupportedDevice = conf_of(device)->gpm && conf_of(device)->arch >= 9;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out) { ENTER(GpmSampleAlloc, -1); *out = calloc(1, sizeof **out); return NVML_SUCCESS; }
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) { ENTER(GpmSampleFree, -1); free(sample); return NVML_SUCCESS; }
static nvmlReturn_t take_sample(nvmlDevice_t device, int instance, nvmlGpmSample_t sample)
{
    if (!conf_of(device)->gpm || conf_of(device)->arch < 9)
        return NOT_SUPPORTED;
    struct totals now = {.ns = (unsigned long long)now_ns(CLOCK_MONOTONIC)};
    *sample = (struct gpm_sample){device->gpu, instance, sim_map ? sim_totals(device->gpu) : now};
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) { ENTER_DEVICE(GpmSampleGet); return take_sample(device, -1, sample); }
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned instance, nvmlGpmSample_t sample) { ENTER_DEVICE(GpmMigSampleGet); return take_sample(device, (int)instance, sample); }

/* 1 any kernel, 2 SM activity, 3 occupancy, 5 any tensor pipe, 10 DRAM bandwidth, all in per cent; 20 and 21 PCIe from and to the GPU in
 * MiB/s, 102 and 103 C2C alike, not of MIG instances. As on an H200, what is copied counts there and in utilization, but not as a kernel. */
static double gpm_value(unsigned metric, struct gpm_sample *older, struct gpm_sample *newer, int *code)
{
    struct gpu_conf *conf = &control()->gpu[newer->gpu];
    double active = (double)conf->sm_active, ns = (double)(newer->at.ns - older->at.ns);
    if (sim_map)
        active = 100 * share(newer->at.sm_done, older->at.sm_done, ns);
    for (int i = 0; i < conf->nmigs && newer->instance >= 0; i++)
        if ((int)conf->migs[i].instance == newer->instance)
            active = metric == 1 ? conf->migs[i].util_pct : conf->migs[i].active_pct;
    switch (metric) {
    case 1:
        if (newer->instance >= 0)
            return active;
        if (sim_map)
            return 100 * share(newer->at.done, older->at.done, ns);
        return conf->gr_active >= 0 ? (double)conf->gr_active : (double)util_at(conf, now_ns(CLOCK_REALTIME) / 1000);
    case 2: return active;
    case 3: return sim_map ? active / 2 : (double)conf->sm_occupancy;
    case 5: return (double)conf->tensor;
    case 10: return (double)conf->dram;
    case 20: case 21:
        if (newer->instance >= 0 || !conf->gpm_pcie)
            break;
        if (conf->gpm_pcie == 2)
            return 0;
        if (sim_map)
            return (metric == 20 ? newer->at.tx - older->at.tx : newer->at.rx - older->at.rx) / ns * 1e9 / 1048576;
        return 1e6 * (double)(metric == 20 ? conf->pcie_tx_mb_s : conf->pcie_rx_mb_s) / 1048576;
    case 102: case 103:
        if (newer->instance >= 0 || !conf->c2c_links)
            break;
        return 1e6 * (double)(metric == 102 ? conf->c2c_tx_mb_s : conf->c2c_rx_mb_s) / 1048576;
    }
    *code = NOT_SUPPORTED;
    return 0;
}
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    if (get->version != 1 || !get->sample1 || !get->sample2)
        return INVALID_ARGUMENT;
    ENTER(GpmMetricsGet, get->sample2->gpu);
    if (get->sample2->at.ns <= get->sample1->at.ns || !get->sample1->at.ns)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->numMetrics && control()->gpu[get->sample2->gpu].gpm_strict; i++)
        if (get->metrics[i].metricId == 1 || get->metrics[i].metricId > 10)
            return INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->numMetrics; i++) {
        get->metrics[i].nvmlReturn = NVML_SUCCESS;
        get->metrics[i].value = gpm_value(get->metrics[i].metricId, get->sample1, get->sample2, &get->metrics[i].nvmlReturn);
    }
    return NVML_SUCCESS;
}
#endif
