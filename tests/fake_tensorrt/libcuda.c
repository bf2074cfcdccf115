/* A CUDA driver library without a GPU, for tests of the TensorRT worker.

   Device memory is memory of the process and streams are no-ops. Events are times of a clock that
   only `halfwise_pass_time` moves: what an engine is said to take, whatever else the machine does.
   What it shows of the GPU comes from the environment:

   HALFWISE_FAKE_CUDA_DEVICES   number of devices (1); 0 is a machine without a GPU
   HALFWISE_FAKE_CUDA_MEMORY    bytes of device memory (8 GiB); allocations beyond it fail
   HALFWISE_FAKE_CUDA_NAME      name of the GPU ("Fake GPU")
   HALFWISE_FAKE_CUDA_UUID      a number in the device's UUID (0): what has another is another GPU
   HALFWISE_FAKE_CUDA_VERSION   what cuDriverGetVersion says (12040)
*/

#define _GNU_SOURCE
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_INITIALISED = 3, ILLEGAL_ADDRESS = 700 };

struct event {
    double at;
    int recorded;
};

static size_t used;
static int initialised;
static int lost;
static double now; /* milliseconds */

void halfwise_pass_time(double milliseconds) { now += milliseconds; }

/* What a kernel's fault does: from then on the context gives nothing but errors. */
void halfwise_lose_context(void) { lost = 1; }

static CUresult state(void) { return lost ? ILLEGAL_ADDRESS : OK; }

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static size_t total_memory(void) { return setting("HALFWISE_FAKE_CUDA_MEMORY", 8ull << 30); }

CUresult cuInit(unsigned flags) {
    (void)flags;
    initialised = 1;
    return setting("HALFWISE_FAKE_CUDA_DEVICES", 1) ? OK : NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version) {
    *version = (int)setting("HALFWISE_FAKE_CUDA_VERSION", 12040);
    return OK;
}

CUresult cuGetErrorName(CUresult status, const char **text) {
    *text = status == OK                ? "CUDA_SUCCESS"
            : status == INVALID         ? "CUDA_ERROR_INVALID_VALUE"
            : status == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : status == NOT_INITIALISED ? "CUDA_ERROR_NOT_INITIALIZED"
            : status == NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
            : status == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                        : NULL;
    return *text ? OK : INVALID;
}

CUresult cuGetErrorString(CUresult status, const char **text) {
    return cuGetErrorName(status, text);
}

CUresult cuDeviceGetCount(int *count) {
    *count = (int)setting("HALFWISE_FAKE_CUDA_DEVICES", 1);
    return initialised ? OK : NOT_INITIALISED;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal < (int)setting("HALFWISE_FAKE_CUDA_DEVICES", 1) ? OK : INVALID;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    (void)device;
    const char *given = getenv("HALFWISE_FAKE_CUDA_NAME");
    strncpy(name, given && *given ? given : "Fake GPU", (size_t)length);
    return OK;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR */
    *value = attribute == 75 ? 9 : 0;
    return OK;
}

CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
    uint64_t number = setting("HALFWISE_FAKE_CUDA_UUID", 0);
    memset(uuid, 0xfa, 16);
    memcpy(uuid, &number, sizeof number);
    uuid[15] = (unsigned char)device;
    return OK;
}

CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    return cuDeviceGetUuid(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = total_memory();
    return OK;
}

CUresult cuDevicePrimaryCtxRetain(void **context, CUdevice device) {
    (void)device;
    *context = &initialised;
    return initialised ? OK : NOT_INITIALISED;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    return OK;
}

CUresult cuCtxSetCurrent(void *context) {
    (void)context;
    return OK;
}

CUresult cuCtxGetCurrent(void **context) {
    *context = &initialised;
    return OK;
}

CUresult cuCtxSynchronize(void) { return state(); }

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes) {
    *bytes = total_memory();
    *free_bytes = *bytes > used ? *bytes - used : 0;
    return state();
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    if (!bytes) return INVALID;
    if (lost) return state();
    if (bytes > total_memory() - used) return OUT_OF_MEMORY;
    /* Aligned as CUDA promises, and poisoned: who reads what nobody wrote gets NaN. */
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);
    used += malloc_usable_size(memory);
    *pointer = (CUdeviceptr)(uintptr_t)memory;
    return OK;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    void *memory = (void *)(uintptr_t)pointer;
    if (memory) used -= malloc_usable_size(memory);
    free(memory);
    return OK;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    *pointer = bytes ? malloc(bytes) : NULL;
    return *pointer ? OK : INVALID;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return cuMemAllocHost_v2(pointer, bytes);
}

CUresult cuMemFreeHost(void *pointer) {
    free(pointer);
    return OK;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return OK;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return OK;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, NULL);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, NULL);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
    memset((void *)(uintptr_t)to, value, bytes);
    return OK;
}

CUresult cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = &used;
    return OK;
}

CUresult cuStreamSynchronize(void *stream) {
    (void)stream;
    return state();
}

CUresult cuStreamDestroy_v2(void *stream) {
    (void)stream;
    return OK;
}

CUresult cuEventCreate(struct event **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? OK : OUT_OF_MEMORY;
}

CUresult cuEventRecord(struct event *event, void *stream) {
    (void)stream;
    event->at = now;
    event->recorded = 1;
    return OK;
}

CUresult cuEventSynchronize(struct event *event) {
    (void)event;
    return OK;
}

CUresult cuEventElapsedTime(float *milliseconds, struct event *start, struct event *end) {
    if (!start->recorded || !end->recorded) return INVALID;
    *milliseconds = (float)(end->at - start->at);
    return OK;
}

CUresult cuEventDestroy_v2(struct event *event) {
    free(event);
    return OK;
}
