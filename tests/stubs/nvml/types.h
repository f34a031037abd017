/* The parts of NVML's C interface that the stub serves: types and codes, laid out as in NVIDIA's nvml.h. */
#ifndef NVML_STUB_TYPES_H
#define NVML_STUB_TYPES_H

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LIBRARY_NOT_FOUND = 12, FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15, RESET_REQUIRED = 16, LIB_RM_VERSION_MISMATCH = 18, MEMORY = 20, ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};
enum { TYPE_DOUBLE, TYPE_UINT, TYPE_ULONG, TYPE_ULL, TYPE_SLL, TYPE_SINT };

typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } nvmlPciInfo_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_v2_t;
typedef struct { nvmlProcessInfo_v2_t info; unsigned long long usedGpuCcProtectedMemory; } nvmlProcessInfo_r535_t;
typedef struct { unsigned pid; unsigned long long timeStamp; unsigned smUtil, memUtil, encUtil, decUtil; } nvmlProcessUtilizationSample_t;
typedef union { double dVal; unsigned uiVal; unsigned long ulVal; unsigned long long ullVal; long long sllVal; int siVal; } nvmlValue_t;
typedef struct { unsigned long long timeStamp; nvmlValue_t sampleValue; } nvmlSample_t;
typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec; int valueType; nvmlReturn_t nvmlReturn; nvmlValue_t value; } nvmlFieldValue_t;
typedef struct { unsigned version; int sensorType, temperature; } nvmlTemperature_t;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount,
        gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;
typedef struct { unsigned version; unsigned char clusterUuid[16]; nvmlReturn_t status; unsigned cliqueId; unsigned char state; unsigned healthMask; } nvmlGpuFabricInfoV_t; /* v2 */
typedef struct { unsigned version, isSupportedDevice; } nvmlGpmSupport_t;
typedef struct gpm_sample *nvmlGpmSample_t;
typedef struct { unsigned metricId; nvmlReturn_t nvmlReturn; double value; struct { const char *shortName, *longName, *unit; } info; } nvmlGpmMetric_t;
typedef struct { unsigned version, numMetrics; nvmlGpmSample_t sample1, sample2; nvmlGpmMetric_t metrics[]; } nvmlGpmMetricsGet_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
struct nvmlDevice_st {
    int gpu;
    int mig; /* index of the MIG device on its GPU, -1: the GPU itself */
};
typedef struct event_set *nvmlEventSet_t;
typedef struct { nvmlDevice_t device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; } nvmlEventData_t;

#endif
