"""The two judges where `tools/get-rtx` and `tools/get-webgpu` put them."""

import sys
from pathlib import Path

from halfwise.targets import rtx, webgpu

FOLDER = Path(__file__).resolve().parents[2] / ".judges"
"""Git ignores it."""


class RtxBuilder(rtx.RtxBuilder):
    """TensorRT for RTX in a folder."""

    command = ("env", f"PYTHONPATH={FOLDER / 'rtx'}", sys.executable)

    def __init__(self) -> None:
        super().__init__(self.command)

    def missing(self) -> str | None:
        """Return why it cannot be asked; None where it can."""
        return _missing("rtx")


class WebGpu(webgpu.WebGpu):
    """ONNX Runtime on WebGPU with Mesa's software driver, in a folder."""

    def __init__(self) -> None:
        super().__init__(self.command())

    @staticmethod
    def command() -> tuple[str, ...]:
        """Return the command of Node.js with the driver's libraries."""
        folder = FOLDER / "webgpu"
        places = [*folder.glob("root/usr/lib/*-linux-gnu"), *folder.glob("root/lib/*-linux-gnu")]
        icd = folder / "lavapipe.json"
        return (
            "env",
            f"LD_LIBRARY_PATH={':'.join(map(str, places))}",
            f"NODE_PATH={folder / 'node_modules'}",
            # The Vulkan loader knows the second name since 1.3.207, the first always.
            f"VK_ICD_FILENAMES={icd}",
            f"VK_DRIVER_FILES={icd}",
            # Shaders are compiled once, not in each process: most of the time of short runs.
            f"MESA_SHADER_CACHE_DIR={folder / 'shaders'}",
            "node",
        )

    def missing(self) -> str | None:
        """Return why it cannot be asked; None where it can."""
        return _missing("webgpu")


def _missing(name: str) -> str | None:
    # Written last.
    made = (FOLDER / name / "made-from").is_file()
    return None if made else f"There is no {FOLDER / name}: tools/get-{name} makes it."
