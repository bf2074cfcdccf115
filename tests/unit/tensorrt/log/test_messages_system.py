import pytest

from halfwise.tensorrt.log.log import explain
from halfwise.tensorrt.log.messages_system import STOPPED
from tests.unit.tensorrt.log.wordings import kind_of

LINES = [
    (
        "driver-old",
        "[W] [TRT] CUDA initialization failure with error: 35. Please check your CUDA installation:"
        "  http://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html",
    ),
    ("driver-old", "Cuda failure: CUDA driver version is insufficient for CUDA runtime version"),
    ("gpu-missing", "[E] [TRT] Cuda initialization failure with error 100. Please check"),
    ("gpu-unseen", "[04/15/2023-04:37:46] [W] [TRT] Unable to determine GPU memory usage"),
    (
        "kernel-image",
        "[E] 9: Skipping tactic0x00000000000003e8 due to exception no kernel image is available "
        "for execution on the device",
    ),
    (
        "memory-tactic",
        "[W] [TRT] Skipping tactic 0 due to insuficient memory on requested size of 29147520 "
        "detected for tactic 0.",
    ),
    (
        "memory-tactic",
        "[TRT] [W] UNSUPPORTED_STATESkipping tactic 4 due to insufficient memory on requested size "
        "of 66048 detected for tactic 0x000000000000001f.",
    ),
    (
        "memory-tactic",
        "[TensorRT] ERROR: Tactic Device request: 2304MB Available: 1536MB. Device memory is "
        "insufficient to use tactic.",
    ),
    (
        "memory-workspace",
        "[I] [TRT] Some tactics do not have sufficient workspace memory to run. Increasing "
        "workspace size may increase performance",
    ),
    (
        "memory",
        "[E] 1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)",
    ),
    (
        "memory",
        "[W] Requested amount of GPU memory (1180463648 bytes) could not be allocated. There may "
        "not be enough free memory for allocation to succeed.",
    ),
    ("memory", "Error Code 1: Myelin (autotuning: CUDA error 2 allocating 0-byte buffer: )"),
    (
        "memory-illegal",
        "[W] [TRT] Skipping tactic 0x0 due to exception an illegal memory access was encountered",
    ),
    (
        "lazy-loading",
        "[TRT] [W] CUDA lazy loading is not enabled. Enabling it can significantly reduce device "
        "memory usage. See `CUDA_MODULE_LOADING`",
    ),
    (
        "library-version",
        "[TRT] [W] TensorRT was linked against cuDNN 8.9.0 but loaded cuDNN 8.7.0",
    ),
    (
        "library-version",
        "[TRT] [W] TensorRT was linked against cuBLAS/cuBLAS LT 10.2.3 but loaded cuBLAS/cuBLAS LT "
        "10.2.2",
    ),
    ("kernel-image", "nvrtc: error: invalid value for --gpu-architecture (-arch)"),
    (
        "context-changed",
        "[TRT] [W] The CUDA context changed between createInferBuilder and buildSerializedNetwork.",
    ),
    (
        "context-changed",
        "[TRT] [E] 1: [cudaDriverHelpers.cpp::operator()::29] Error Code 1: Cuda Driver "
        "(context is destroyed)",
    ),
    (
        "second-logger",
        "[TensorRT] WARNING: The logger passed into createInferRuntime differs from one already "
        "provided for an existing builder, runtime, or refitter.",
    ),
    ("default-stream", "[TRT] [W] Using default stream in enqueueV3() may lead to performance"),
    (
        "driver-fusion",
        "[W] [TRT] Convolution + generic activation fusion is disable due to incompatible driver "
        "or nvrtc",
    ),
    ("preview-feature", "[W] [TRT] Using kFASTER_DYNAMIC_SHAPES_0805 preview feature."),
    (
        "timing-unstable",
        "[W] * GPU compute time is unstable, with coefficient of variance = 20.4616%.",
    ),
    (
        "timing-bound",
        "[W] * Throughput may be bound by Enqueue Time rather than GPU Compute and the GPU may be "
        "under-utilized.",
    ),
    ("deprecated", "[W] --explicitBatch flag has been deprecated and has no effect!"),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind


def test_versions_are_told():
    told = [kind_of(line)[1] for kind, line in LINES if kind == "library-version"]
    assert told == [
        "TensorRT was built against cuDNN 8.9.0 but found 8.7.0.",
        "TensorRT was built against cuBLAS/cuBLAS LT 10.2.3 but found 10.2.2.",
    ]


LINES_crashes = [
    ("crash", "Segmentation fault (core dumped)"),
    ("crash", "build.sh: line 3: 12345 Segmentation fault      (core dumped) trtexec --fp16"),
    ("crash", "启用FP16精度时出现段错误"),
    ("crash", "zsh: segmentation fault (core dumped)  trtexec --onnx=m.onnx"),
    ("crash", "[1]    12345 segmentation fault (core dumped)  trtexec --onnx=m.onnx"),
    ("crash", "make: *** [Makefile:3: engine] Segmentation fault (core dumped)"),
    ("crash", "Fatal Python error: Segmentation fault"),
    ("crash", "Fatal Python error: Aborted"),
    ("crash", "zsh: abort (core dumped)  trtexec --onnx=m.onnx"),
    ("crash", "Command terminated by signal 11"),
    ("crash", "Process finished with exit code 139"),
    ("crash", "Process finished with exit code -1073741819 (0xC0000005)"),
    ("crash", "b.sh: ligne 3 : 12345 Erreur de segmentation   trtexec --fp16"),
    ("crash", "Speicherzugriffsfehler (Speicherabzug geschrieben)"),
    ("crash", "Abgebrochen (Speicherabzug geschrieben)"),
    ("crash", "已放弃 \uff08核心已转储\uff09"),
    ("crash", "Ошибка сегментирования (образ памяти сброшен на диск)"),
    ("crash", "terminate called after throwing an instance of 'std::logic_error'"),
    ("crash", "Aborted (core dumped)"),
    ("crash", "Floating point exception (core dumped)"),
    ("crash", "Trace/breakpoint trap (core dumped)"),
    ("killed", "Killed"),
    ("killed", "Getötet"),
    ("killed", "zsh: killed     trtexec --onnx=m.onnx"),
    ("killed", "b.sh: 第 3 行\uff1a 12345 已杀死  trtexec --fp16"),
    ("killed", "[123.4] Out of memory: Killed process 7 (trtexec)"),
]


@pytest.mark.parametrize(("kind", "line"), LINES_crashes)
def test_wordings_crashes(kind, line):
    assert kind_of(line)[0] == kind
    assert kind in STOPPED


@pytest.mark.parametrize(
    "line",
    [
        "[I] Nothing was killed here",
        "[V] the option Aborted= is unknown",
        "no core dumped",
        "[I] Aborted: 0, killed: 0",
        "[I] exit code 1390",
        "[I] Builder: Killed no tactic",
    ],
)
def test_what_is_no_crash(line):
    assert explain([line]) == ()


def test_a_fault_that_tensorrt_caught_is_the_compilers():
    kind, _ = kind_of("[E] [TRT] MyelinCheckException: autotuner.cpp:1: Segmentation fault")
    assert kind == "myelin"


LINES_polygraphy = [
    (
        "comparison-output",
        "[E]         FAILED | Output: 'flow' | Difference exceeds tolerance (rel=1e-05, abs=1e-05)",
    ),
    ("comparison", "[E]     FAILED | Mismatched outputs: ['flow']"),
    ("comparison", "[E] Accuracy Summary | a vs. b | Passed: 1/12 iterations | Pass Rate: 8.3%"),
    (
        "tolerance-needed",
        "[I]  Minimum Required Tolerance: elemwise error | [abs=9.6] OR [rel=1.2e+03] (lower)",
    ),
    (
        "shape-default",
        "[W] Input tensor: x (dtype=DataType.FLOAT, shape=(-1, 3)) | No shapes provided; Will use "
        "shape: [1, 3] for min/opt/max in profile.",
    ),
]


@pytest.mark.parametrize(("kind", "line"), LINES_polygraphy)
def test_wordings_polygraphy(kind, line):
    assert kind_of(line)[0] == kind


def test_a_comparison_that_passed_is_nothing_to_explain():
    line = "[I] Accuracy Summary | a vs. b | Passed: 12/12 iterations | Pass Rate: 100.0%"
    assert explain([line]) == ()
