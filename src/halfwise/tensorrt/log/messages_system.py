"""Messages about the system and the tools around TensorRT: GPU, memory, crashes, Polygraphy."""

from halfwise.tensorrt.log.findings import GUIDE, ISSUES, Message

_PRACTICES = f"{GUIDE}performance/best-practices.html"

ENVIRONMENT = (
    Message(
        "driver-old",
        "error",
        r"CUDA initialization failure with error:? 35\b"
        r"|driver version is insufficient for CUDA runtime version",
        "The GPU driver is too old for the CUDA version that TensorRT uses.",
        "Update the driver, or use a TensorRT built for an older CUDA.",
        f"{ISSUES}2879",
    ),
    Message(
        "gpu-missing",
        "error",
        r"(?i)CUDA initialization failure with error|no CUDA-capable device|CUDA_ERROR_NO_DEVICE",
        "CUDA finds no usable GPU.",
        "Check `nvidia-smi`. Start a container with --gpus all.",
        f"{ISSUES}149",
    ),
    Message(
        "gpu-unseen",
        "warning",
        r"Unable to determine GPU memory usage",
        "TensorRT cannot read how much GPU memory is in use.",
        "Check `nvidia-smi`, and that the driver supports TensorRT's CUDA version.",
        f"{ISSUES}2879",
    ),
    Message(
        "kernel-image",
        "error",
        r"no kernel image is available for execution on the device|Unsupported SM"
        r"|invalid value for --gpu-architecture",
        "This version of TensorRT or a plugin has no kernels for this GPU.",
        "Use a TensorRT that supports the GPU's compute capability, and build plugins for it.",
        "https://github.com/NVIDIA/Stable-Diffusion-WebUI-TensorRT/issues/163",
    ),
    Message(
        "memory-tactic",
        "warning",
        r"due to ins\w+ memory on requested size|due to oom error on requested size"
        r"|Device memory is insufficient to use tactic|Tactic Device request",
        "Kernels were skipped because free GPU memory or the workspace is too small for them: the "
        "engine may be slower.",
        "Free GPU memory, or allow a larger workspace (--memPoolSize=workspace:MiB).",
        f"{ISSUES}2035",
    ),
    Message(
        "memory-workspace",
        "info",
        r"Some tactics do not have sufficient workspace memory",
        "Kernels were skipped because the workspace is too small for them.",
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
        "Memory ran out.",
        "Free GPU memory, or build with a smaller workspace, batch or max shape.",
        f"{ISSUES}948",
    ),
    Message(
        "memory-illegal",
        "error",
        r"an illegal memory access was encountered",
        "A kernel accessed memory that is not its own; nothing after it can be trusted.",
        "This is a bug in TensorRT or in a plugin: build without plugins, or use another version.",
        "https://github.com/NVIDIA/Deep-Learning-Accelerator-SW/issues/21",
    ),
    Message(
        "lazy-loading",
        "info",
        r"CUDA lazy loading is not enabled",
        "CUDA loads all kernels at start, which costs memory.",
        "Set CUDA_MODULE_LOADING=LAZY (needs a driver for CUDA 11.7 or later).",
        f"{ISSUES}2468",
    ),
    Message(
        "library-version",
        "warning",
        r"TensorRT was (?:linked|compiled) against (?P<library>.+?) (?P<built>[\d.]+) but "
        r"(?:loaded|is linked against) .+? (?P<loaded>[\d.]+)",
        "TensorRT was built against {library} {built} but found {loaded}.",
        "Usually harmless; if kernels fail, install the version it was built against.",
        f"{ISSUES}3534",
    ),
    Message(
        "driver-fusion",
        "warning",
        r"fusion is disabled? due to incompatible driver or nvrtc",
        "The driver or NVRTC is incompatible, so some layers are not fused.",
        "Update the driver.",
        f"{ISSUES}1221",
    ),
    Message(
        "context-changed",
        "warning",
        r"The CUDA context changed between|\(context is destroyed\)",
        "The CUDA context is not, or no longer, the one in which TensorRT's objects were created.",
        "Create one context before all of them (pycuda.autoinit creates one too), and keep it "
        "until they are destroyed.",
        f"{ISSUES}2052",
    ),
    Message(
        "second-logger",
        "info",
        r"The logger passed into create\w+ differs from one already provided",
        "TensorRT keeps the first logger it was given.",
        "",
        "https://github.com/Hale423/CenterPoint/issues/12",
    ),
    Message(
        "default-stream",
        "info",
        r"Using default stream in enqueue",
        "The engine runs on CUDA's default stream, which synchronises more than other streams.",
        "",
        _PRACTICES,
    ),
    Message(
        "preview-feature",
        "info",
        r"Using k\w+ preview feature",
        "A preview feature is enabled.",
        "",
        f"{ISSUES}2647",
    ),
    Message(
        "timing-unstable",
        "warning",
        r"GPU compute time is unstable, with coefficient of variance = (?P<variance>[\d.]+%)"
        r"|locking GPU clock frequency or adding --useSpinWait",
        "Times vary from run to run, so small differences between engines mean nothing.",
        "Lock the GPU's clocks, add --useSpinWait, and run nothing else on the GPU.",
        _PRACTICES,
    ),
    Message(
        "timing-bound",
        "warning",
        r"Throughput may be bound by (?P<what>Enqueue Time|.*?transfers)"
        r"|--useCudaGraph \(utilize CUDA graphs|Add --useCudaGraph|--noDataTransfers",
        "The host or transfers limit the throughput, not the GPU.",
        "Compare GPU times instead, or add --useCudaGraph or --noDataTransfers.",
        _PRACTICES,
    ),
    Message(
        "deprecated",
        "info",
        r"(?i)\b(?:is|are|been|was) deprecated|deprecated in TensorRT"
        r"|Explicit batch dim is automatically enabled",
        "A later version of TensorRT will drop an option or a function that is used here.",
        "",
        f"{GUIDE}reference/command-line-programs.html",
    ),
)


CRASH, KILLED = "crash", "killed"
STOPPED = (CRASH, KILLED)
"""Kinds that end a build: the lines before them tell how far it had come."""
_SHELL = (
    r"(?:^|[:\uff1a]\s*\d+\s+|^\[\d+\]\s+\d+\s+|^zsh: |^make\S*: \*{3} \[.*\] "
    r"|^Fatal Python error: )"
)
"""What precedes the name of a signal: nothing, a process number, or the reporting program."""
_FAULTS = (
    *("[Ss]egmentation fault", "Speicherzugriffsfehler", "Adressierungsfehler", "段错误"),
    *("Erreur de segmentation", "Violación de segmento", "Errore di segmentazione"),
    *("Fal(?:h|t)a de segmentação", "Ошибка сегмент(?:ации|ирования)", "程式記憶體區段錯誤"),
    *("セグメンテーション(?:フォルト|違反)", "세그(?:멘|먼)테이션 오류"),
)
"""Names of the signal as glibc and bash translate them; likewise below."""
_KILLED = (
    *("[Kk]illed", "Getötet", "Tué", "Processus arrêté", "Terminado \\(killed\\)", "Ucciso"),
    *("Morto", "Уби(?:то|т)", "強制終了", "已杀死", "強制結束", "죽었음"),
)
_DUMPED = (
    *("core dumped", "Speicherabzug geschrieben", "`core' generado", "core dump creato"),
    *("核心已转储", "核心已傾印", "コアダンプ", "образ памяти сброшен на диск"),
)
_TRY = (
    "This is a bug in TensorRT or in a plugin: no value in a model should cause it. Build without "
    "FP16: if that works, keep the block it stopped at in FP32, rewrite it (`halfwise "
    "modernize`), or try another --builderOptimizationLevel or version. `halfwise fix --target "
    "tensorrt` builds in a separate process and continues after a crash."
)

CRASHES = (
    Message(
        CRASH,
        "error",
        rf"{_SHELL}(?:{'|'.join(_FAULTS)})|\bSIGSEGV\b|(?i:signal):? \(?11\b|出现段错误"
        r"|exit code (?:139|-11|-1073741819|0x[Cc]0000005)\b",
        "The process crashed: it accessed memory that is not its own (segmentation fault).",
        _TRY,
        f"{ISSUES}4111",
    ),
    Message(
        CRASH,
        "error",
        rf"{_SHELL}(?:Aborted\b(?!:)|abort\b)|\bSIGABRT\b|^terminate called|^free\(\): "
        r"|^malloc\w*\(\): |^double free or corruption",
        "The process crashed: it aborted itself (abort).",
        _TRY,
        f"{ISSUES}3162",
    ),
    Message(
        CRASH,
        "error",
        rf"{_SHELL}(?P<how>Floating point exception|Illegal instruction|Bus error)\b"
        rf"|^(?P<other>[\w/ ]+) [(\uff08](?:{'|'.join(_DUMPED)})[)\uff09]",
        "The process crashed ({how}{other}).",
        _TRY,
        f"{ISSUES}3162",
    ),
    Message(
        KILLED,
        "error",
        rf"{_SHELL}(?:{'|'.join(_KILLED)})(?!\w)|Out of memory: Killed process|oom-kill:"
        r"|\bSIGKILL\b|exit code 137\b",
        "The process was killed from outside, usually by the operating system when memory runs "
        "out.",
        "Check `dmesg`; free main memory (which a Jetson shares with its GPU), add swap, set a "
        "smaller workspace (--memPoolSize=workspace:MiB), or raise the container's limit.",
        "https://github.com/wang-xinyu/tensorrtx/issues/1145",
    ),
)


_DEBUG = "https://github.com/NVIDIA/TensorRT/blob/main/tools/Polygraphy/how-to/debug_accuracy.md"
_JUDGE = (
    "Polygraphy allows 1e-5 by default, which FP16 cannot meet, and generates random inputs unless "
    "you give it some. Use real inputs and the tolerance of your task: `halfwise verify` judges "
    "the result, `halfwise diagnose` finds the first cause."
)

POLYGRAPHY = (
    Message(
        "comparison-output",
        "error",
        r"FAILED \| Output: '(?P<tensor>[^']+)' \| Difference exceeds tolerance "
        r"\((?P<allowed>[^)]*)\)",
        "The runners' values of {tensor} differ by more than allowed ({allowed}).",
        _JUDGE,
        _DEBUG,
    ),
    Message(
        "comparison",
        "error",
        r"FAILED \| (?:Mismatched outputs|Difference exceeds tolerance)"
        r"|Accuracy Summary .*Passed: (?P<passed>\d+)/(?!(?P=passed)\b)\d+",
        "The runners' outputs differ by more than allowed.",
        _JUDGE,
        _DEBUG,
    ),
    Message(
        "tolerance-needed",
        "info",
        r"Minimum Required Tolerance: .*\[abs=(?P<abs>[^\]]+)\] OR \[rel=(?P<rel>[^\]]+)\]",
        "The outputs would match with an absolute tolerance of {abs}, or a relative one of {rel}.",
        "",
        _DEBUG,
    ),
    Message(
        "shape-default",
        "warning",
        r"Input tensor: (?P<tensor>\S+) .*No shapes provided; Will use shape: "
        r"(?P<shape>\[[^\]]*\])",
        "No shape was given for {tensor}; Polygraphy chose {shape}, and the engine runs only at "
        "that shape.",
        "Give --trt-min-shapes, --trt-opt-shapes and --trt-max-shapes, and real inputs "
        "(--load-inputs).",
        f"{ISSUES}2208",
    ),
)
