"""Two judges that know nothing of halfwise's emulation, and need no GPU.

`RtxBuilder` is TensorRT for RTX: its parser and builder show what is accepted, and in which types
each kernel computes. `WebGpu` is ONNX Runtime on WebGPU with a software driver: it computes a file
as it is written, in real FP16. `tools/get-rtx` and `tools/get-webgpu` put them below `FOLDER`.
"""

from halfwise.targets.rtx import Build, Kernel, Refusal, Tensor, folded
from tests.judges.place import FOLDER, RtxBuilder, WebGpu

__all__ = [
    "FOLDER",
    "Build",
    "Kernel",
    "Refusal",
    "RtxBuilder",
    "Tensor",
    "WebGpu",
    "folded",
]
