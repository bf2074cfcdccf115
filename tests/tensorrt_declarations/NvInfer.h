// See NvInferRuntime.h beside it: this is for the program that builds.
#pragma once

#include "NvInferRuntime.h"

namespace nvinfer1
{

enum class LayerType : std::int32_t
{
    kCONVOLUTION, kCONSTANT, kSHAPE, kIDENTITY, kASSERTION, kCONDITION, kCONDITIONAL_INPUT,
    kCONDITIONAL_OUTPUT, kDEQUANTIZE, kQUANTIZE, kITERATOR, kLOOP_OUTPUT, kRECURRENCE, kTRIP_LIMIT,
    kPLUGIN, kPLUGIN_V2,
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 5
    kNON_ZERO,
#endif
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 6
    kCAST,
#endif
#if NV_TENSORRT_MAJOR >= 10
    kPLUGIN_V3,
#endif
#if NV_TENSORRT_MAJOR > 10 || (NV_TENSORRT_MAJOR == 10 && NV_TENSORRT_MINOR >= 9)
    kDYNAMIC_QUANTIZE,
#endif
};

enum class BuilderFlag : std::int32_t
{
    kTF32,
#if NV_TENSORRT_MAJOR < 11
    kFP16, kINT8, kOBEY_PRECISION_CONSTRAINTS,
#endif
#if NV_TENSORRT_MAJOR == 9 || NV_TENSORRT_MAJOR == 10
    kBF16, kFP8,
#endif
};

enum class NetworkDefinitionCreationFlag : std::int32_t
{
#if NV_TENSORRT_MAJOR < 11
    kEXPLICIT_BATCH,
#endif
#if NV_TENSORRT_MAJOR >= 9
    kSTRONGLY_TYPED,
#endif
};

enum class MemoryPoolType : std::int32_t { kWORKSPACE };
enum class ProfilingVerbosity : std::int32_t { kLAYER_NAMES_ONLY, kNONE, kDETAILED };
enum class TacticSource : std::int32_t
{
    kCUBLAS, kCUBLAS_LT, kCUDNN, kEDGE_MASK_CONVOLUTIONS,
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 5
    kJIT_CONVOLUTIONS,
#endif
};
using TacticSources = std::uint32_t;
using NetworkDefinitionCreationFlags = std::uint32_t;

class ITensor
{
public:
    DataType getType() const noexcept;
    bool isShapeTensor() const noexcept;
};

class ILayer
{
public:
    LayerType getType() const noexcept;
    char const* getName() const noexcept;
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 6
    char const* getMetadata() const noexcept;
#endif
    std::int32_t getNbOutputs() const noexcept;
    ITensor* getInput(std::int32_t index) const noexcept;
    ITensor* getOutput(std::int32_t index) const noexcept;
#if NV_TENSORRT_MAJOR < 11
    void setPrecision(DataType dataType) noexcept;
    void setOutputType(std::int32_t index, DataType dataType) noexcept;
#endif
};

class INetworkDefinition
{
public:
    virtual ~INetworkDefinition() noexcept = default;
    std::int32_t getNbLayers() const noexcept;
    ILayer* getLayer(std::int32_t index) const noexcept;
};

class IOptimizationProfile
{
public:
    bool setDimensions(char const* inputName, OptProfileSelector select, Dims const& dims) noexcept;
#if NV_TENSORRT_MAJOR < 11
    bool setShapeValues(char const* inputName, OptProfileSelector select, std::int32_t const* values,
        std::int32_t nbValues) noexcept;
#else
    bool setShapeValuesV2(char const* inputName, OptProfileSelector select,
        std::int64_t const* values, std::int32_t nbValues) noexcept;
#endif
};

class ITimingCache
{
public:
    virtual ~ITimingCache() noexcept = default;
};

class IHostMemory
{
public:
    virtual ~IHostMemory() noexcept = default;
    void* data() const noexcept;
    std::size_t size() const noexcept;
};

class IBuilderConfig
{
public:
    virtual ~IBuilderConfig() noexcept = default;
    void setFlag(BuilderFlag builderFlag) noexcept;
    void clearFlag(BuilderFlag builderFlag) noexcept;
    void setProfilingVerbosity(ProfilingVerbosity verbosity) noexcept;
    void setMemoryPoolLimit(MemoryPoolType pool, std::size_t poolSize) noexcept;
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 6
    void setBuilderOptimizationLevel(std::int32_t level) noexcept;
#endif
    bool setTacticSources(TacticSources tacticSources) noexcept;
    std::int32_t addOptimizationProfile(IOptimizationProfile const* profile) noexcept;
    ITimingCache* createTimingCache(void const* blob, std::size_t size) const noexcept;
    bool setTimingCache(ITimingCache const& cache, bool ignoreMismatch) noexcept;
};

class IBuilder
{
public:
    virtual ~IBuilder() noexcept = default;
    INetworkDefinition* createNetworkV2(NetworkDefinitionCreationFlags flags) noexcept;
    IBuilderConfig* createBuilderConfig() noexcept;
    IOptimizationProfile* createOptimizationProfile() noexcept;
    IHostMemory* buildSerializedNetwork(INetworkDefinition& network, IBuilderConfig& config) noexcept;
};

IBuilder* createInferBuilder(ILogger& logger) noexcept;

} // namespace nvinfer1
