// What the C++ recipe uses of TensorRT, declared as NVIDIA's headers of 8.5 to 11 declare it, for
// compilers on machines without them. The version comes with -DNV_TENSORRT_MAJOR=… and _MINOR.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_runtime_api.h"

namespace nvinfer1
{

enum class DataType : std::int32_t
{
    kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kUINT8 = 5,
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 6
    kFP8 = 6,
#endif
#if NV_TENSORRT_MAJOR >= 9
    kBF16 = 7,
#endif
#if NV_TENSORRT_MAJOR >= 10
    kINT64 = 8, kINT4 = 9,
#endif
};

enum class OptProfileSelector : std::int32_t { kMIN, kOPT, kMAX };
enum class TensorIOMode : std::int32_t { kNONE, kINPUT, kOUTPUT };
enum class TensorLocation : std::int32_t { kDEVICE, kHOST };
enum class TensorFormat : std::int32_t { kLINEAR, kCHW2 };

class Dims
{
public:
    static constexpr std::int32_t MAX_DIMS{8};
    std::int32_t nbDims;
#if NV_TENSORRT_MAJOR >= 10
    std::int64_t d[MAX_DIMS];
#else
    std::int32_t d[MAX_DIMS];
#endif
};

class ILogger
{
public:
    enum class Severity : std::int32_t { kINTERNAL_ERROR, kERROR, kWARNING, kINFO, kVERBOSE };
    virtual void log(Severity severity, char const* message) noexcept = 0;
    virtual ~ILogger() = default;
};

class IOutputAllocator
{
public:
#if NV_TENSORRT_MAJOR >= 10
    virtual void* reallocateOutputAsync(char const*, void*, std::uint64_t, std::uint64_t, cudaStream_t)
    {
        return nullptr;
    }
#else
    virtual void* reallocateOutput(char const* tensorName, void* currentMemory, std::uint64_t size,
        std::uint64_t alignment) noexcept = 0;
#endif
    virtual void notifyShape(char const* tensorName, Dims const& dims) noexcept = 0;
    virtual ~IOutputAllocator() = default;
};

class IExecutionContext
{
public:
    virtual ~IExecutionContext() noexcept = default;
    bool setOptimizationProfileAsync(std::int32_t profileIndex, cudaStream_t stream) noexcept;
    bool setInputShape(char const* tensorName, Dims const& dims) noexcept;
    Dims getTensorShape(char const* tensorName) const noexcept;
    bool setTensorAddress(char const* tensorName, void* data) noexcept;
    bool setOutputAllocator(char const* tensorName, IOutputAllocator* outputAllocator) noexcept;
    std::int32_t inferShapes(std::int32_t nbMaxNames, char const** tensorNames) noexcept;
    bool enqueueV3(cudaStream_t stream) noexcept;
};

class ICudaEngine
{
public:
    virtual ~ICudaEngine() noexcept = default;
    IExecutionContext* createExecutionContext() noexcept;
    std::int32_t getNbIOTensors() const noexcept;
    char const* getIOTensorName(std::int32_t index) const noexcept;
    TensorIOMode getTensorIOMode(char const* tensorName) const noexcept;
    DataType getTensorDataType(char const* tensorName) const noexcept;
    TensorLocation getTensorLocation(char const* tensorName) const noexcept;
    TensorFormat getTensorFormat(char const* tensorName) const noexcept;
    Dims getTensorShape(char const* tensorName) const noexcept;
    std::int32_t getNbOptimizationProfiles() const noexcept;
    Dims getProfileShape(
        char const* tensorName, std::int32_t profileIndex, OptProfileSelector select) const noexcept;
};

class IRuntime
{
public:
    virtual ~IRuntime() noexcept = default;
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept;
};

IRuntime* createInferRuntime(ILogger& logger) noexcept;

} // namespace nvinfer1
