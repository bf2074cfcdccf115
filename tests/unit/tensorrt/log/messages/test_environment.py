import pytest

from tests.unit.tensorrt.log.messages.wordings import kind_of

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
        "TensorRT was made for cuDNN 8.9.0, and finds 8.7.0.",
        "TensorRT was made for cuBLAS/cuBLAS LT 10.2.3, and finds 10.2.2.",
    ]
