/* What changes from tick to tick. */

static long long util_at(const struct gpu_conf *conf, long long wall_us)
{
    if (conf->util_low < 0 || conf->wave_ms <= 0)
        return conf->util;
    return wall_us / 500 / conf->wave_ms % 2 ? conf->util_low : conf->util;
}

/* The newest windows of utilization, oldest first. */
static int windows_of(int gpu, struct window *out, int room)
{
    if (sim_map)
        return sim_windows(gpu, out, room);
    struct gpu_conf *conf = &control()->gpu[gpu];
    long long last = now_ns(CLOCK_REALTIME) / 1000 / REFRESH_US - conf->stale_samples;
    for (int i = 0; i < room; i++) {
        long long wall_us = (last - room + 1 + i) * REFRESH_US;
        out[i] = (struct window){.wall_us = wall_us, .util_pct = (unsigned)util_at(conf, wall_us)};
    }
    return room;
}

static struct window newest_window(int gpu)
{
    struct window window = {0};
    windows_of(gpu, &window, 1);
    return window;
}

static long long power_mw(int gpu, int average)
{
    struct gpu_conf *conf = &control()->gpu[gpu];
    if (!sim_map) {
        long long now = util_at(conf, now_ns(CLOCK_REALTIME) / 1000);
        long long mw = conf->power_mw >= 0 ? conf->power_mw : conf->power_idle_mw + (conf->power_limit_mw - conf->power_idle_mw) * now / 100;
        return average && conf->power_avg_mw >= 0 ? conf->power_avg_mw : mw;
    }
    double busy = 0;
    if (average) {
        struct window windows[6];
        int n = sim_windows(gpu, windows, 6);
        for (int i = 0; i < n; i++)
            busy += windows[i].sm_share / n;
    } else
        busy = sim_power_share(gpu);
    return conf->power_idle_mw + (long long)((conf->power_limit_mw - conf->power_idle_mw) * busy);
}

static unsigned long long energy_mj(int gpu)
{
    struct gpu_conf *conf = &control()->gpu[gpu];
    double seconds = now_ns(CLOCK_MONOTONIC) / 1e9;
    if (!sim_map)
        return (unsigned long long)(seconds * (double)power_mw(gpu, 1));
    double busy_s = (double)sim_totals(gpu).sm_done / 1e9;
    return (unsigned long long)(seconds * (double)conf->power_idle_mw + busy_s * (double)(conf->power_limit_mw - conf->power_idle_mw));
}

#ifndef NVML_OLD_DRIVER
static unsigned long long pcie_bytes(int gpu, int receive)
{
    if (sim_map)
        return receive ? sim_totals(gpu).rx : sim_totals(gpu).tx;
    struct gpu_conf *conf = &control()->gpu[gpu];
    return (unsigned long long)(now_ns(CLOCK_MONOTONIC) / 1e3 * (double)(receive ? conf->pcie_rx_mb_s : conf->pcie_tx_mb_s));
}
#endif

static nvmlMemory_v2_t memory_of(nvmlDevice_t device)
{
    struct gpu_conf *conf = conf_of(device);
    if (device->mig >= 0) {
        struct mig_conf *mig = &conf->migs[device->mig];
        return (nvmlMemory_v2_t){0x02000028, mig->total_mib << 20, 0, (mig->total_mib - mig->used_mib) << 20, mig->used_mib << 20};
    }
    struct proc_conf procs[PROCS];
    int n = sim_map ? sim_procs(device->gpu, procs, PROCS) : conf->nprocs;
    long long used = conf->mem_used_mib;
    if (used < 0 || sim_map) {
        used = 0;
        for (int i = 0; i < n; i++)
            used += sim_map ? procs[i].mem_mib : conf->procs[i].mem_mib;
    }
    long long total = conf->mem_total_mib, reserved = conf->mem_reserved_mib;
    return (nvmlMemory_v2_t){0x02000028, total << 20, reserved << 20, (total - reserved - used) << 20, used << 20};
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER_DEVICE(UtilizationRates);
    REFUSE_MIG();
    *out = (nvmlUtilization_t){newest_window(device->gpu).util_pct, (unsigned)conf_of(device)->mem_util};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long seen, int *value_type, unsigned *count, nvmlSample_t *out)
{
    ENTER_DEVICE(Samples);
    REFUSE_MIG();
    if (type != 1)
        return NOT_SUPPORTED;
    *value_type = TYPE_UINT;
    if (!out)
        return *count = KEPT, NVML_SUCCESS;
    struct window windows[KEPT];
    int n = windows_of(device->gpu, windows, KEPT);
    for (int i = 0; i < n; i++)
        windows[i].wall_us += conf_of(device)->samples_ahead_ms * 1000;
    unsigned given = 0;
    for (int i = 0; i < n && given < *count; i++)
        if ((unsigned long long)windows[i].wall_us > seen)
            out[given++] = (nvmlSample_t){(unsigned long long)windows[i].wall_us, {.ullVal = windows[i].util_pct}};
    *count = given;
    return given ? NVML_SUCCESS : NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    ENTER_DEVICE(MemoryInfo_v1);
    nvmlMemory_v2_t memory = memory_of(device);
    *out = (nvmlMemory_t){memory.total, memory.free, memory.used + memory.reserved};
    return NVML_SUCCESS;
}
#ifndef NVML_OLD_DRIVER
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    ENTER_DEVICE(MemoryInfo);
    if (out->version != 0x02000028)
        return ARGUMENT_VERSION_MISMATCH;
    *out = memory_of(device);
    return NVML_SUCCESS;
}
#endif
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    ENTER_DEVICE(BAR1MemoryInfo);
    *out = (nvmlMemory_t){256ULL << 30, 255ULL << 30, 1ULL << 30};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *out)
{
    ENTER_DEVICE(ClockInfo);
    struct gpu_conf *conf = conf_of(device);
    int idle = sim_map && newest_window(device->gpu).util_pct == 0;
    *out = (unsigned)(type == 2 ? conf->mem_clock : idle ? 345 : conf->sm_clock);
    return NVML_SUCCESS;
}
static nvmlReturn_t clock_reasons(nvmlDevice_t device, unsigned long long *out)
{
    ENTER_DEVICE(CurrentClocksEventReasons);
    *out = (unsigned long long)conf_of(device)->throttle | (newest_window(device->gpu).util_pct == 0);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *out) { return clock_reasons(device, out); }
NUMBER_CALL(nvmlDeviceGetPowerUsage, PowerUsage, power_mw(device->gpu, 1))
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out)
{
    ENTER_DEVICE(TotalEnergyConsumption);
    *out = energy_mj(device->gpu);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *out)
{
    ENTER_DEVICE(Temperature);
    *out = (unsigned)conf_of(device)->temp;
    return sensor == 0 ? NVML_SUCCESS : INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *kb_per_s)
{
    ENTER_DEVICE(PcieThroughput);
    struct gpu_conf *conf = conf_of(device);
    struct window window = newest_window(device->gpu);
    double bytes = sim_map ? (counter ? window.rx_bytes_per_s : window.tx_bytes_per_s) : 1e6 * (double)(counter ? conf->pcie_rx_mb_s : conf->pcie_tx_mb_s);
    *kb_per_s = (unsigned)(bytes / 1e3);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *out, unsigned *period_us)
{
    ENTER_DEVICE(EncoderUtilization);
    *out = (unsigned)conf_of(device)->enc, *period_us = REFRESH_US;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *out, unsigned *period_us)
{
    ENTER_DEVICE(DecoderUtilization);
    *out = (unsigned)conf_of(device)->dec, *period_us = REFRESH_US;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *out)
{
    ENTER_DEVICE(TotalEccErrors);
    (void)counter;
    *out = (unsigned long long)(type ? conf_of(device)->ecc_uncorrected : conf_of(device)->ecc_corrected);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, int cause, unsigned *count, unsigned long long *addresses)
{
    ENTER_DEVICE(RetiredPages);
    unsigned pages = cause ? 0 : (unsigned)conf_of(device)->retired, room = *count;
    *count = pages;
    if (room < pages || (pages && !addresses))
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < pages; i++)
        addresses[i] = 0x1000 * (i + 1);
    return NVML_SUCCESS;
}

#ifndef NVML_OLD_DRIVER
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *out) { return clock_reasons(device, out); }
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    ENTER_DEVICE(Temperature);
    out->temperature = (int)conf_of(device)->temp;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    ENTER_DEVICE(RemappedRows);
    struct gpu_conf *conf = conf_of(device);
    *corrected = (unsigned)conf->remapped, *uncorrected = 0;
    *pending = (unsigned)conf->remap_pending, *failed = (unsigned)conf->remap_failed;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    ENTER_DEVICE(GpuFabricInfoV);
    struct gpu_conf *conf = conf_of(device);
    if (out->version != (sizeof *out | 2 << 24))
        return INVALID_ARGUMENT;
    out->state = (unsigned char)conf->fabric_state, out->status = (nvmlReturn_t)conf->fabric_status;
    out->healthMask = (unsigned)conf->fabric_mask;
    return NVML_SUCCESS;
}
#endif

static int fill_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    struct gpu_conf *conf = conf_of(device);
    unsigned long long kib = (unsigned long long)(now_ns(CLOCK_MONOTONIC) / 1e9 * (double)conf->nvlink_mb_s * 1e6 / 1024);
    const struct odd_field *odd = &conf->odd_fields[field->fieldId < FIELDS ? field->fieldId : 0];
    if (odd->is_odd) {
        field->valueType = odd->type, field->value = odd->value;
        return NVML_SUCCESS;
    }
    field->valueType = TYPE_UINT;
    switch (field->fieldId) {
    case 94: case 169: field->value.uiVal = (unsigned)conf->pcie_replays; return NVML_SUCCESS;
    case 173: field->value.uiVal = (unsigned)conf->pcie_errors; return NVML_SUCCESS;
    case 74: field->value.ullVal = 1000000ULL * (unsigned long long)conf->slowed_power_ms; break;
    case 75: case 251: case 252: field->value.ullVal = 1000000ULL * (unsigned long long)conf->slowed_heat_ms; break;
    case 253: field->value.ullVal = 1000000ULL * (unsigned long long)conf->slowed_brake_ms; break;
    case 76: field->value.ullVal = 0; break;
    case 256: field->value.uiVal = (unsigned)conf->smoothing; return NVML_SUCCESS;
    case 230: field->value.uiVal = (unsigned)conf->recovery_action; return NVML_SUCCESS;
    case 170: field->value.uiVal = (unsigned)conf->c2c_links; return NVML_SUCCESS;
    case 172: if (!conf->c2c_links) return NOT_SUPPORTED; field->value.uiVal = 44712; return NVML_SUCCESS;
    /* of one link; before Blackwell 161 to 163, from there on 214 to 222 */
    case 161: case 162: case 163: case 214: case 215: case 220: case 221: case 222: {
        int is_bad = field->scopeId == (unsigned)conf->bad_link, is_new = field->fieldId > 200;
        if (field->scopeId >= (unsigned)conf->nvlinks || is_new != (conf->arch >= 10))
            return NOT_SUPPORTED;
        long long value = field->fieldId == 161 ? conf->link_replays : field->fieldId == 162 || field->fieldId == 215 ? conf->link_recoveries
                        : field->fieldId == 163 || field->fieldId == 221 ? conf->link_crc : field->fieldId >= 220 ? conf->link_ber : 0;
        field->value.ullVal = is_bad ? (unsigned long long)value : 0;
        break;
    }
    case 82: field->value.uiVal = (unsigned)conf->mem_temp; return NVML_SUCCESS;
    case 91: field->value.uiVal = (unsigned)conf->nvlinks; return NVML_SUCCESS;
    case 83: field->value.ullVal = energy_mj(device->gpu); break;
    case 138: case 139: if (!conf->nvlinks) return NOT_SUPPORTED; field->value.ullVal = kib; break;
#ifndef NVML_OLD_DRIVER
    case 185: field->value.uiVal = (unsigned)power_mw(device->gpu, 1); return NVML_SUCCESS;
    case 186: field->value.uiVal = (unsigned)power_mw(device->gpu, 0); return NVML_SUCCESS;
    case 197: case 198: field->value.uiVal = (unsigned)pcie_bytes(device->gpu, field->fieldId == 198); return NVML_SUCCESS; /* goes round */
#endif
    default: return NOT_SUPPORTED;
    }
    field->valueType = TYPE_ULL;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    ENTER_DEVICE(FieldValues);
    for (int i = 0; i < count; i++) {
        int error = fields[i].fieldId < FIELDS ? conf_of(device)->field_errors[fields[i].fieldId] : 0;
        memset(&fields[i].value, 0, sizeof fields[i].value);
        fields[i].nvmlReturn = error ? error : fill_field(device, &fields[i]);
        fields[i].timestamp = now_ns(CLOCK_REALTIME) / 1000;
    }
    return NVML_SUCCESS;
}
