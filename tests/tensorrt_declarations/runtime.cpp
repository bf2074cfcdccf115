// A TensorRT runtime and a CUDA without a GPU, for what NvInferRuntime.h beside it declares: it
// holds a program to the order of calls, the shapes, the addresses and the sizes that they document.
//
// An engine is a text of lines, -1 for a dynamic axis:
//   input NAME TYPE AXIS...         an input in device memory; TYPE is a number of DataType
//   host NAME TYPE AXIS...          one whose values decide about shapes
//   profile NUMBER NAME MIN... MAX...
//   double NAME INPUT               an output: FP32, twice the input
//   copy NAME INPUT                 an output: the input
//   positives NAME INPUT            an output: those elements of an FP32 input that are > 0
//   sized NAME HOST                 an output: FP32 zeros, of the shape that an INT32 host input holds
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "NvInferPlugin.h"
#include "NvInferRuntime.h"

using namespace nvinfer1;

namespace
{

using Sizes = std::vector<std::int64_t>;
using Text = std::string;

struct Blocks
{
    std::map<char*, std::size_t> all;

    ~Blocks()
    {
        if (!all.empty())
        {
            std::cerr << "left on the device: " << all.size() << " blocks\n";
            std::_Exit(99);
        }
    }

    bool hold(void const* begin, std::size_t size) const
    {
        auto const* data = static_cast<char const*>(begin);
        for (auto const& [block, room] : all)
        {
            if (block <= data && data + size <= block + room)
            {
                return true;
            }
        }
        return false;
    }
};

Blocks blocks;

bool refuse(Text const& why)
{
    std::cerr << "stub: " << why << '\n';
    return false;
}

Dims dimsOf(Sizes const& sizes)
{
    Dims dims{};
    dims.nbDims = static_cast<std::int32_t>(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i)
    {
        dims.d[i] = static_cast<std::int32_t>(sizes[i]);
    }
    return dims;
}

std::int64_t volume(Sizes const& sizes)
{
    std::int64_t count{1};
    for (auto const size : sizes)
    {
        count = count < 0 || size < 0 ? -1 : count * size;
    }
    return count;
}

struct Tensor
{
    Text name, kind, of;
    int type{0};
    Sizes shape;
    std::map<int, std::pair<Sizes, Sizes>> limits;

    bool isInput() const { return kind == "input" || kind == "host"; }
};

std::size_t bytes(int type)
{
    static std::size_t const sizes[]{4, 2, 1, 4, 1, 1, 1, 2, 8};
    return sizes[type];
}

struct Engine : ICudaEngine
{
    std::vector<Tensor> tensors;
    int profiles{1};

    Tensor& at(Text const& name)
    {
        for (auto& tensor : tensors)
        {
            if (tensor.name == name)
            {
                return tensor;
            }
        }
        std::abort();
    }

    bool read(std::istream&& text)
    {
        for (Text line, word; std::getline(text, line);)
        {
            std::istringstream words{line};
            Tensor tensor;
            words >> tensor.kind;
            if (tensor.kind == "profile")
            {
                int number{};
                Sizes sizes;
                words >> number >> word;
                for (std::int64_t size{}; words >> size; sizes.push_back(size)) {}
                auto const half = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
                at(word).limits[number] = {Sizes(sizes.begin(), half), Sizes(half, sizes.end())};
                profiles = std::max(profiles, number + 1);
                continue;
            }
            words >> tensor.name;
            if (tensor.isInput())
            {
                words >> tensor.type;
                for (std::int64_t size{}; words >> size; tensor.shape.push_back(size)) {}
            }
            else
            {
                words >> tensor.of;
                tensor.type = tensor.kind == "sized" ? 0 : at(tensor.of).type;
                tensor.shape = tensor.kind == "positives" ? Sizes{-1} : at(tensor.of).shape;
            }
            tensors.push_back(tensor);
        }
        return !tensors.empty();
    }
};

struct Context : IExecutionContext
{
    Engine& engine;
    int profile{0};
    std::map<Text, Sizes> shapes;
    std::map<Text, void*> addresses;
    std::map<Text, IOutputAllocator*> allocators;

    explicit Context(Engine& made) : engine{made} {}

    bool ready(Tensor const& tensor) const
    {
        return volume(shapeOf(tensor)) >= 0 && (tensor.kind != "host" || addresses.count(tensor.name) != 0);
    }

    Sizes shapeOf(Tensor const& tensor) const
    {
        if (tensor.isInput())
        {
            auto const found = shapes.find(tensor.name);
            return found == shapes.end() ? tensor.shape : found->second;
        }
        auto const& input = engine.at(tensor.of);
        if (tensor.kind == "positives" || !ready(input))
        {
            return tensor.kind == "positives" ? Sizes{-1} : tensor.shape;
        }
        if (tensor.kind != "sized")
        {
            return shapeOf(input);
        }
        auto const* values = static_cast<std::int32_t const*>(addresses.at(input.name));
        return Sizes(values, values + volume(shapeOf(input)));
    }

    bool usable(Tensor const& tensor) const
    {
        auto const found = addresses.find(tensor.name);
        auto const size = static_cast<std::size_t>(volume(shapeOf(tensor))) * bytes(tensor.type);
        if (found == addresses.end())
        {
            return refuse("no address of " + tensor.name);
        }
        return blocks.hold(found->second, size) != (tensor.kind == "host") || refuse("bad address of " + tensor.name);
    }

    bool give(Tensor const& tensor, Sizes const& shape, void const* data)
    {
        auto const size = static_cast<std::size_t>(volume(shape)) * bytes(tensor.type);
        auto const allocator = allocators.find(tensor.name);
        if (allocator != allocators.end())
        {
            auto const* name = tensor.name.c_str();
#if NV_TENSORRT_MAJOR >= 10
            auto* memory = allocator->second->reallocateOutputAsync(name, nullptr, size, 512, nullptr);
#else
            auto* memory = allocator->second->reallocateOutput(name, nullptr, size, 512);
#endif
            if (memory == nullptr || reinterpret_cast<std::uintptr_t>(memory) % 512 != 0 || !blocks.hold(memory, size))
            {
                return refuse("bad memory for " + tensor.name);
            }
            addresses[tensor.name] = memory;
            allocator->second->notifyShape(name, dimsOf(shape));
        }
        if (!usable(tensor) && tensor.kind != "positives")
        {
            return false;
        }
        if (data != nullptr)
        {
            std::memcpy(addresses.at(tensor.name), data, size);
        }
        else
        {
            std::memset(addresses.at(tensor.name), 0, size);
        }
        return true;
    }

    bool compute(Tensor const& tensor)
    {
        auto const& input = engine.at(tensor.of);
        auto const shape = shapeOf(input);
        auto const* data = static_cast<float const*>(addresses.at(input.name));
        if (tensor.kind == "copy")
        {
            return give(tensor, shape, data);
        }
        if (tensor.kind == "sized")
        {
            return give(tensor, shapeOf(tensor), nullptr);
        }
        std::vector<float> found;
        for (std::int64_t i = 0; i < volume(shape); ++i)
        {
            if (tensor.kind == "double" || data[i] > 0)
            {
                found.push_back(tensor.kind == "double" ? 2 * data[i] : data[i]);
            }
        }
        auto const count = static_cast<std::int64_t>(found.size());
        return give(tensor, tensor.kind == "double" ? shape : Sizes{count}, found.data());
    }
};

Engine& of(ICudaEngine const* engine)
{
    return static_cast<Engine&>(const_cast<ICudaEngine&>(*engine));
}

Context& of(IExecutionContext const* context)
{
    return static_cast<Context&>(const_cast<IExecutionContext&>(*context));
}

} // namespace

extern "C"
{
bool initLibNvInferPlugins(void*, char const*) { return true; }

cudaError_t cudaMalloc(void** place, std::size_t size)
{
    if (std::getenv("NO_MEMORY") != nullptr)
    {
        return cudaErrorMemoryAllocation;
    }
    *place = std::aligned_alloc(256, (size + 511) / 256 * 256);
    blocks.all[static_cast<char*>(*place)] = size;
    return cudaSuccess;
}

cudaError_t cudaFree(void* block)
{
    if (block != nullptr && blocks.all.erase(static_cast<char*>(block)) == 0)
    {
        return cudaErrorInvalidValue;
    }
    std::free(block);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, void const* from, std::size_t count, cudaMemcpyKind kind)
{
    bool const up = kind == cudaMemcpyHostToDevice;
    if (blocks.hold(to, count) != up || blocks.hold(from, count) == up)
    {
        return cudaErrorInvalidValue;
    }
    std::memcpy(to, from, count);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t count, cudaMemcpyKind kind, cudaStream_t)
{
    return cudaMemcpy(to, from, count, kind);
}

cudaError_t cudaStreamCreate(cudaStream_t*) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
char const* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid"; }
}

namespace nvinfer1
{

IRuntime* createInferRuntime(ILogger&) noexcept { return new IRuntime; }

ICudaEngine* IRuntime::deserializeCudaEngine(void const* blob, std::size_t size) noexcept
{
    auto* engine = new Engine;
    if (!engine->read(std::istringstream{Text(static_cast<char const*>(blob), size)}))
    {
        delete engine;
        return nullptr;
    }
    return engine;
}

IExecutionContext* ICudaEngine::createExecutionContext() noexcept { return new Context{of(this)}; }
std::int32_t ICudaEngine::getNbIOTensors() const noexcept { return static_cast<std::int32_t>(of(this).tensors.size()); }
char const* ICudaEngine::getIOTensorName(std::int32_t i) const noexcept
{
    return of(this).tensors[static_cast<std::size_t>(i)].name.c_str();
}
TensorIOMode ICudaEngine::getTensorIOMode(char const* name) const noexcept
{
    return of(this).at(name).isInput() ? TensorIOMode::kINPUT : TensorIOMode::kOUTPUT;
}
DataType ICudaEngine::getTensorDataType(char const* name) const noexcept
{
    return static_cast<DataType>(of(this).at(name).type);
}
TensorLocation ICudaEngine::getTensorLocation(char const* name) const noexcept
{
    return of(this).at(name).kind == "host" ? TensorLocation::kHOST : TensorLocation::kDEVICE;
}
TensorFormat ICudaEngine::getTensorFormat(char const*) const noexcept { return TensorFormat::kLINEAR; }
Dims ICudaEngine::getTensorShape(char const* name) const noexcept { return dimsOf(of(this).at(name).shape); }
std::int32_t ICudaEngine::getNbOptimizationProfiles() const noexcept { return of(this).profiles; }
Dims ICudaEngine::getProfileShape(char const* name, std::int32_t profile, OptProfileSelector end) const noexcept
{
    auto const& limits = of(this).at(name).limits.at(profile);
    return dimsOf(end == OptProfileSelector::kMIN ? limits.first : limits.second);
}

bool IExecutionContext::setOptimizationProfileAsync(std::int32_t profile, cudaStream_t) noexcept
{
    of(this).profile = profile;
    of(this).shapes.clear();
    return true;
}

bool IExecutionContext::setInputShape(char const* name, Dims const& dims) noexcept
{
    auto& context = of(this);
    auto const& tensor = context.engine.at(name);
    Sizes const shape(dims.d, dims.d + dims.nbDims);
    bool fits = shape.size() == tensor.shape.size();
    auto const limits = tensor.limits.find(context.profile);
    for (std::size_t i = 0; fits && i < shape.size(); ++i)
    {
        bool const inside = limits == tensor.limits.end()
            || (limits->second.first[i] <= shape[i] && shape[i] <= limits->second.second[i]);
        fits = tensor.shape[i] < 0 ? inside : shape[i] == tensor.shape[i];
    }
    context.shapes[name] = shape;
    return fits;
}

Dims IExecutionContext::getTensorShape(char const* name) const noexcept
{
    return dimsOf(of(this).shapeOf(of(this).engine.at(name)));
}

bool IExecutionContext::setTensorAddress(char const* name, void* data) noexcept
{
    of(this).addresses[name] = data;
    return true;
}

bool IExecutionContext::setOutputAllocator(char const* name, IOutputAllocator* allocator) noexcept
{
    of(this).allocators[name] = allocator;
    return true;
}

std::int32_t IExecutionContext::inferShapes(std::int32_t, char const**) noexcept
{
    std::int32_t missing{0};
    for (auto const& tensor : of(this).engine.tensors)
    {
        missing += tensor.isInput() && !of(this).ready(tensor);
    }
    return missing;
}

bool IExecutionContext::enqueueV3(cudaStream_t) noexcept
{
    auto& context = of(this);
    bool done = inferShapes(0, nullptr) == 0 || refuse("shapes are missing");
    for (auto const& tensor : context.engine.tensors)
    {
        done = done && (tensor.isInput() ? context.usable(tensor) : context.compute(tensor));
    }
    return done;
}

} // namespace nvinfer1
