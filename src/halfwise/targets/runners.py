"""What judges ask of a written file: ONNX Runtime here, and the targets of `--target`."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from halfwise.case import Built, FileRunner, Runtime, Samples
from halfwise.declarations.options import TargetName
from halfwise.emulation.budget import RUN_SECONDS
from halfwise.emulation.runner import OnnxRuntime, static
from halfwise.errors import BackendMissing, CaseError
from halfwise.graph.model import Network
from halfwise.graph.weights import save
from halfwise.metrics import Outputs
from halfwise.records import NodeName, Profile, replace
from halfwise.scratch import scratch
from halfwise.targets.rtx import Build, RtxBuilder, folded, traffic
from halfwise.targets.webgpu import WebGpu
from halfwise.targets.worker import Crashed, Worker
from halfwise.tensorrt.ports import profiles_from_data
from halfwise.tensorrt.workers import target_command
from halfwise.wording import excerpt, stopped

_BUILD_SECONDS = 600.0
"""Longest build of a file, in both forms: some recurrent networks take minutes. Our choice."""
_REPEATED = ("GRU", "If", "LSTM", "Loop", "RNN", "Scan")


class _Asking:
    """A runner that asks a program of another package."""

    worker: Worker
    target: TargetName
    needs: str

    @property
    def version(self) -> str:
        """The version of the package.

        Raises:
            BackendMissing: it cannot be asked.
        """
        try:
            return self.worker.version
        except Crashed as crash:
            raise BackendMissing(
                f"--target {self.target} cannot be asked: {stopped(str(crash))}",
                f"{self.needs}: see docs/targets.md.",
            ) from crash

    def close(self) -> None:
        """End the process."""
        self.worker.close()


@dataclass(frozen=True)
class OnWebGpu(_Asking):
    """ONNX Runtime's WebGPU provider, with its fusions or without; fields of `FileRunner`."""

    worker: WebGpu
    fuses: bool
    runs: bool = True
    target = "webgpu"
    needs = "It needs Node.js, onnxruntime-node and a Vulkan driver; how to name them"

    @property
    def name(self) -> str:
        """Its name."""
        return "WebGPU" if self.fuses else "WebGPU (not optimised)"

    def run(self, model: ir.Model, samples: Samples) -> Sequence[Outputs]:
        """Return the outputs."""
        with _saved(model) as path:
            seconds = RUN_SECONDS * len(samples)
            return self.worker.run(path, [*samples], fusions=self.fuses, seconds=seconds)


@dataclass(frozen=True)
class InRtx(_Asking):
    """The builder of TensorRT for RTX, for a compute capability; fields of `FileRunner`."""

    worker: RtxBuilder
    sm: str
    runs: bool = False
    target = "rtx"
    needs = "Install it (`pip install 'halfwise[rtx]'`), or name a Python that has it"

    @property
    def name(self) -> str:
        """Its name."""
        return f"TensorRT for RTX ({self.sm})"

    def run(self, model: ir.Model, samples: Samples) -> Built:
        """Build the model for the shapes of the samples; if it is refused, with these fixed."""
        until = time.monotonic() + _BUILD_SECONDS

        def built(network: Network, refused: str = "") -> Built:
            profiles, left = profiles_from_data(network, samples), until - time.monotonic()
            build, names = self.build(network.model, profiles, left)
            moved = [t for k in build.kernels for t in (*k.inputs, *k.constants, *k.outputs)]
            # The kernels of a body are listed once, however often it runs.
            once = all(node.op_type not in _REPEATED for node in network.all_nodes())
            known = once and all(size >= 0 for tensor in moved for size in tensor.shape)
            return Built(names, refused, sum(traffic(moved).values()) if known else None)

        network = Network(model, None, "", {})
        try:
            return built(network)
        except CaseError as refused:
            fixed = static(network, samples)
            if fixed is not None:
                with suppress(CaseError):
                    return built(fixed, refused.message)
            raise

    def build(
        self, model: ir.Model, profiles: Sequence[Profile], seconds: float = _BUILD_SECONDS
    ) -> tuple[Build, tuple[NodeName, ...]]:
        """Return the build for the first of the profiles, and what it computes low unasked.

        It is given up after so many seconds.

        Raises:
            CaseError: there is no engine.
        """
        shapes = {
            str(name): (one.min, one.opt, one.max)
            for profile in profiles[:1]
            for name, one in {**profile.shapes, **profile.values}.items()
        }
        with _saved(model) as path:
            build = self.worker.build(path, self.sm, shapes, seconds=seconds)
            if not build.built:
                first = [f"{e.node} {e.text}" for e in build.errors[:1]]
                raise CaseError(excerpt("".join(first)) or "No reason is given.")
            names = folded(build.kernels, onnx.load(path, load_external_data=False))
        return build, tuple(map(NodeName, names))


def on_webgpu() -> OnWebGpu:
    """Return WebGPU, which runs files as they are written; UsageError: see `target_command`."""
    return OnWebGpu(WebGpu(target_command("webgpu")), fuses=False)


def in_rtx(sm: str) -> InRtx:
    """Return the builder of TensorRT for RTX; UsageError: see `target_command`."""
    return InRtx(RtxBuilder(target_command("rtx")), sm)


def runners_of(
    names: Iterable[TargetName], sm: str, libraries: tuple[Path, ...] = ()
) -> tuple[FileRunner, ...]:
    """Return the runners of targets; nothing is started.

    Args:
        names: The targets; engines of "tensorrt" are judged apart.
        sm: The compute capability that `rtx` builds for, such as "SM86".
        libraries: Custom operator libraries for ONNX Runtime.

    Raises:
        UsageError: see `target_command`.
    """
    runners: list[FileRunner] = []
    for name in dict.fromkeys(names):
        if name == "webgpu":
            written = on_webgpu()
            runners += [written, replace(written, fuses=True)]
        elif name == "rtx":
            runners.append(in_rtx(sm))
        elif name == "ort-cuda":
            runners.append(OnnxRuntime(Runtime("cuda", libraries)))
    return tuple(runners)


@contextmanager
def _saved(model: ir.Model) -> Iterator[Path]:
    with scratch() as folder:
        save(model, folder / "model.onnx")
        yield folder / "model.onnx"
