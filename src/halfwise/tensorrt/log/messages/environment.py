"""Messages about GPU, driver, libraries, memory and how trtexec was called."""

from halfwise.tensorrt.log.messages.message import GUIDE, ISSUES, Message

_PRACTICES = f"{GUIDE}performance/best-practices.html"

ENVIRONMENT = (
    Message(
        "driver-old",
        "error",
        r"CUDA initialization failure with error:? 35\b"
        r"|driver version is insufficient for CUDA runtime version",
        "The GPU's driver is too old for the CUDA that TensorRT uses.",
        "Update the driver, or take a TensorRT for an older CUDA.",
        f"{ISSUES}2879",
    ),
    Message(
        "gpu-missing",
        "error",
        r"(?i)CUDA initialization failure with error|no CUDA-capable device|CUDA_ERROR_NO_DEVICE",
        "CUDA finds no GPU that it can use.",
        "Check `nvidia-smi`; in a container, that it was started with --gpus all.",
        f"{ISSUES}149",
    ),
    Message(
        "gpu-unseen",
        "warning",
        r"Unable to determine GPU memory usage",
        "TensorRT does not see the GPU's memory.",
        "Check `nvidia-smi`, and that the driver fits TensorRT's CUDA.",
        f"{ISSUES}2879",
    ),
    Message(
        "kernel-image",
        "error",
        r"no kernel image is available for execution on the device|Unsupported SM"
        r"|invalid value for --gpu-architecture",
        "This version of TensorRT or a plugin has no kernels for this GPU.",
        "Take a TensorRT that supports the GPU's compute capability, and build plugins for it.",
        "https://github.com/NVIDIA/Stable-Diffusion-WebUI-TensorRT/issues/163",
    ),
    Message(
        "memory-tactic",
        "warning",
        r"due to ins\w+ memory on requested size|due to oom error on requested size"
        r"|Device memory is insufficient to use tactic|Tactic Device request",
        "Kernels were passed over, because the GPU's free memory or the workspace is too small for "
        "them: the engine may be slower.",
        "Free memory on the GPU, or allow a larger workspace (--memPoolSize=workspace:MiB).",
        f"{ISSUES}2035",
    ),
    Message(
        "memory-workspace",
        "info",
        r"Some tactics do not have sufficient workspace memory",
        "Kernels were passed over, because the workspace is too small for them.",
        "Allow a larger workspace (--memPoolSize=workspace:MiB).",
        f"{ISSUES}1221",
    ),
    Message(
        "memory",
        "error",
        r"Requested amount of GPU memory|\(out of memory\)|OutOfMemory|CUDA error 2 allocating"
        r"|GPU memory allocation failed|Allocation failed during deserialization"
        r"|GPU does not meet the minimum memory requirements"
        r"|cudaErrorMemoryAllocation|CUDA out of memory|std::bad_alloc|cudaMalloc",
        "There was not enough memory.",
        "Free memory on the GPU, or build with a smaller workspace, batch or largest shape.",
        f"{ISSUES}948",
    ),
    Message(
        "memory-illegal",
        "error",
        r"an illegal memory access was encountered",
        "A kernel read or wrote memory that is not its own; whatever follows it is unreliable.",
        "A fault of TensorRT or of a plugin: build without plugins, or take another version.",
        "https://github.com/NVIDIA/Deep-Learning-Accelerator-SW/issues/21",
    ),
    Message(
        "lazy-loading",
        "info",
        r"CUDA lazy loading is not enabled",
        "CUDA loads all kernels at once, which costs memory.",
        "Set CUDA_MODULE_LOADING=LAZY (driver of CUDA 11.7 or later).",
        f"{ISSUES}2468",
    ),
    Message(
        "library-version",
        "warning",
        r"TensorRT was (?:linked|compiled) against (?P<library>.+?) (?P<built>[\d.]+) but "
        r"(?:loaded|is linked against) .+? (?P<loaded>[\d.]+)",
        "TensorRT was made for {library} {built}, and finds {loaded}.",
        "Usually harmless; if kernels fail, install the version that it was made for.",
        f"{ISSUES}3534",
    ),
    Message(
        "driver-fusion",
        "warning",
        r"fusion is disabled? due to incompatible driver or nvrtc",
        "Driver or NVRTC do not fit, so some layers are not fused.",
        "Update the driver.",
        f"{ISSUES}1221",
    ),
    Message(
        "context-changed",
        "warning",
        r"The CUDA context changed between|\(context is destroyed\)",
        "The CUDA context is not, or no longer, the one in which TensorRT's objects were made.",
        "Make one context before all of them (pycuda.autoinit makes one too), and keep it until "
        "they are gone.",
        f"{ISSUES}2052",
    ),
    Message(
        "second-logger",
        "info",
        r"The logger passed into create\w+ differs from one already provided",
        "TensorRT keeps the first logger that it was given.",
        "",
        "https://github.com/Hale423/CenterPoint/issues/12",
    ),
    Message(
        "default-stream",
        "info",
        r"Using default stream in enqueue",
        "The engine runs on CUDA's default stream, which waits more than another would.",
        "",
        _PRACTICES,
    ),
    Message(
        "preview-feature",
        "info",
        r"Using k\w+ preview feature",
        "A preview feature is on.",
        "",
        f"{ISSUES}2647",
    ),
    Message(
        "timing-unstable",
        "warning",
        r"GPU compute time is unstable, with coefficient of variance = (?P<variance>[\d.]+%)"
        r"|locking GPU clock frequency or adding --useSpinWait",
        "The times vary from run to run, so small differences between engines mean nothing.",
        "Lock the GPU's clocks, add --useSpinWait, and let nothing else use the GPU.",
        _PRACTICES,
    ),
    Message(
        "timing-bound",
        "warning",
        r"Throughput may be bound by (?P<what>Enqueue Time|.*?transfers)"
        r"|--useCudaGraph \(utilize CUDA graphs|Add --useCudaGraph|--noDataTransfers",
        "The throughput is limited by the host or by transfers rather than by the GPU.",
        "Compare GPU times instead, or add --useCudaGraph or --noDataTransfers.",
        _PRACTICES,
    ),
    Message(
        "deprecated",
        "info",
        r"(?i)\b(?:is|are|been|was) deprecated|deprecated in TensorRT"
        r"|Explicit batch dim is automatically enabled",
        "An option or a function is used that a later version of TensorRT drops.",
        "",
        f"{GUIDE}reference/command-line-programs.html",
    ),
)
