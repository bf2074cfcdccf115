// See NvInfer.h beside it.
#pragma once

extern "C" bool initLibNvInferPlugins(void* logger, char const* libNamespace);
