// See NvInfer.h beside it.
#pragma once

#include "NvInfer.h"

namespace nvonnxparser
{

enum class OnnxParserFlag : std::int32_t { kNATIVE_INSTANCENORM = 0 };

class IParser
{
public:
    virtual ~IParser() noexcept = default;
    virtual bool parseFromFile(char const* onnxModelFile, int verbosity) noexcept = 0;
    virtual void setFlag(OnnxParserFlag onnxParserFlag) noexcept = 0;
};

IParser* createParser(nvinfer1::INetworkDefinition& network, nvinfer1::ILogger& logger) noexcept;

} // namespace nvonnxparser
