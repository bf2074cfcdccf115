// What the C++ recipe uses of CUDA's runtime, declared as NVIDIA's headers declare it.
#pragma once

#include <cstddef>

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

extern "C"
{
cudaError_t cudaMalloc(void** devPtr, std::size_t size);
cudaError_t cudaFree(void* devPtr);
cudaError_t cudaMemcpy(void* dst, void const* src, std::size_t count, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(
    void* dst, void const* src, std::size_t count, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t* pStream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
char const* cudaGetErrorString(cudaError_t error);
}
