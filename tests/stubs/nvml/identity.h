/* Who a GPU is, its limits and its standing facts. */

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out) { ENTER_DEVICE(Index); *out = device->gpu; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out) { ENTER_DEVICE(MinorNumber); *out = device->gpu; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned room)
{
    ENTER_DEVICE(Name);
    struct gpu_conf *conf = conf_of(device);
    char text[128];
    if (device->mig < 0)
        return give_text(out, room, conf->name);
    snprintf(text, sizeof text, "%s MIG %s", conf->name, conf->migs[device->mig].profile);
    return give_text(out, room, text);
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned room)
{
    ENTER_DEVICE(UUID);
    char text[64];
    uuid_of(device, text);
    return give_text(out, room, text);
}
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned room)
{
    ENTER_DEVICE(Serial);
    char text[32];
    snprintf(text, sizeof text, "16500%08d", device->gpu);
    return give_text(out, room, text);
}
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *out, unsigned room) { ENTER_DEVICE(VbiosVersion); return give_text(out, room, "96.00.A5.00.01"); }
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    ENTER_DEVICE(PciInfo);
    memset(out, 0, sizeof *out);
    bus_of(device, out->busId);
    memcpy(out->busIdLegacy, out->busId + 4, 13);
    out->bus = 0x10u + device->gpu;
    out->pciDeviceId = 0x233510deu;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out) { return nvmlDeviceGetPciInfo_v3(device, out); }
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *out) { return nvmlDeviceGetPciInfo_v3(device, out); }
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(CudaComputeCapability);
    *major = (int)conf_of(device)->arch, *minor = 0;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending) { ENTER_DEVICE(EccMode); *current = *pending = 1; return NVML_SUCCESS; }

/* Windows' driver model and confidential computing: not on these machines. */
nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, int *current, int *pending) { (void)current, (void)pending; ENTER_DEVICE(DriverModel); return NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, int *current, int *pending) { return nvmlDeviceGetDriverModel_v2(device, current, pending); }
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, void *out) { (void)out; ENTER_DEVICE(ConfComputeMemSizeInfo); return NOT_SUPPORTED; }

/* One number of the control file each, as NVML's function of that name gives it. */
#define NUMBER_CALL(function, kind, expression) \
    nvmlReturn_t function(nvmlDevice_t device, unsigned *out) \
    { \
        ENTER_DEVICE(kind); \
        struct gpu_conf *conf = conf_of(device); \
        (void)conf; \
        *out = (unsigned)(expression); \
        return NVML_SUCCESS; \
    }
NUMBER_CALL(nvmlDeviceGetArchitecture, Architecture, conf->arch)
NUMBER_CALL(nvmlDeviceGetBrand, Brand, 18)
NUMBER_CALL(nvmlDeviceGetPersistenceMode, PersistenceMode, 1)
NUMBER_CALL(nvmlDeviceGetDisplayActive, DisplayActive, 0)
NUMBER_CALL(nvmlDeviceGetDisplayMode, DisplayMode, 0)
NUMBER_CALL(nvmlDeviceGetComputeMode, ComputeMode, conf->compute_mode)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, EnforcedPowerLimit, conf->power_limit_mw)
NUMBER_CALL(nvmlDeviceGetPowerManagementLimit, PowerManagementLimit, conf->power_limit_mw)
NUMBER_CALL(nvmlDeviceGetPowerManagementDefaultLimit, PowerManagementDefaultLimit, conf->power_default_mw)
NUMBER_CALL(nvmlDeviceGetPerformanceState, PerformanceState, conf->pstate)
NUMBER_CALL(nvmlDeviceGetFanSpeed, FanSpeed, conf->fan)
NUMBER_CALL(nvmlDeviceGetNumFans, NumFans, 1)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, CurrPcieLinkGeneration, conf->pcie_gen)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, CurrPcieLinkWidth, conf->pcie_width)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, MaxPcieLinkGeneration, conf->pcie_gen_max)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, MaxPcieLinkWidth, conf->pcie_width_max)
NUMBER_CALL(nvmlDeviceGetMaxMigDeviceCount, MaxMigDeviceCount, conf->nmigs ? MIGS : 0)
NUMBER_CALL(nvmlDeviceIsMigDeviceHandle, IsMigDeviceHandle, device->mig >= 0)

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *out) { (void)fan; return nvmlDeviceGetFanSpeed(device, out); }
nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *low, unsigned *high)
{
    ENTER_DEVICE(PowerManagementLimitConstraints);
    *low = 200000, *high = (unsigned)conf_of(device)->power_max_mw;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *out)
{
    ENTER_DEVICE(MaxClockInfo);
    *out = (unsigned)(type == 2 ? conf_of(device)->mem_clock_max : conf_of(device)->sm_clock_max);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int type, unsigned *out)
{
    ENTER_DEVICE(TemperatureThreshold);
    *out = type == 0 ? 95 : 90;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    ENTER_DEVICE(NvLinkState);
    if (link >= 18 || (int)link == conf_of(device)->nvlink_absent)
        return INVALID_ARGUMENT;
    if (link >= 18 - (unsigned)conf_of(device)->nvlinks_refused)
        return NOT_SUPPORTED;
    if ((int)link == conf_of(device)->nvlink_broken)
        return UNKNOWN;
    *active = link < (unsigned)conf_of(device)->nvlinks;
    return NVML_SUCCESS;
}

/* ---- MIG */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(MigMode);
    *current = *pending = conf_of(device)->nmigs > 0;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    ENTER_DEVICE(MigDeviceHandleByIndex);
    if ((int)index >= conf_of(device)->nmigs)
        return NOT_FOUND;
    *out = &handles[device->gpu][1 + index];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    ENTER_DEVICE(DeviceHandleFromMigDeviceHandle);
    *out = &handles[device->gpu][0];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(GpuInstanceId);
    if (device->mig < 0)
        return NOT_SUPPORTED;
    *out = conf_of(device)->migs[device->mig].instance;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(ComputeInstanceId);
    *out = 0;
    return device->mig < 0 ? NOT_SUPPORTED : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    ENTER_DEVICE(Attributes);
    if (device->mig < 0)
        return NOT_SUPPORTED;
    struct mig_conf *mig = &conf_of(device)->migs[device->mig];
    *out = (nvmlDeviceAttributes_t){.multiprocessorCount = mig->sms, .gpuInstanceSliceCount = 1, .memorySizeMB = (unsigned long long)mig->total_mib};
    return NVML_SUCCESS;
}
