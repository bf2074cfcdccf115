"""One model before both judges: what `fix` makes of it, built and run in real FP16."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

import halfwise
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import HalfwiseError, RunFailed
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.loading import load_network
from halfwise.graph.roles import roles_of
from tests.judges import Build, RtxBuilder, WebGpu, folded

SECONDS = 60
"""What takes longer counts as refused: some recurrent models take minutes to build."""

Sample = Mapping[str, NDArray[Any]]
Options = Mapping[str, Any]
Low = Literal["fp16", "bf16", "int8"]


@dataclass(frozen=True)
class Model:
    """A model to judge.

    Attributes:
        name: Its name in the results.
        file: The FP32 model.
        samples: Inputs that bring its faults out.
        options: What `fix` is told.
        judging: What `verify` is told: the same tolerance or metric.
    """

    name: str
    file: Path
    samples: Sequence[Sample]
    options: Options = field(default_factory=dict)
    judging: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What became of a file that `fix` wrote.

    Attributes:
        passed: The verdict; None where there is none.
        built: Whether TensorRT for RTX builds it; None where it was not asked.
        folded: Products that the file has in FP32 and the engine has not.
        right: Whether WebGPU's outputs are right; None where there are none.
        sums: The format of sums with which it passes, as its verdict says.
        said: Errors: of `fix`, of the builder, and how far off WebGPU's outputs are.
    """

    passed: bool | None
    built: bool | None = None
    folded: tuple[str, ...] = ()
    right: bool | None = None
    sums: Literal["fp32", "fp16"] | None = None
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judges:
    """Both judges, and a folder to work in."""

    rtx: RtxBuilder
    webgpu: WebGpu
    folder: Path

    def written(
        self, model: Model, to: Low, *, build: bool, run: bool, options: Options | None = None
    ) -> Written:
        """Return what becomes of the file that `fix` writes.

        Args:
            model: The model.
            to: The format.
            build: Whether to build it.
            run: Whether to run it on WebGPU, which has no BF16.
            options: What `fix` is told in place of the model's options.
        """
        options = {**(model.options if options is None else options), "allow_random": True}
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            out = Path(folder) / "run"
            try:
                fixed = halfwise.fix(model.file, model.samples, out=out, to=to, **options).run
            except HalfwiseError as error:
                return Written(None, said=(error.message,))
            file, passed = out / "model.onnx", fixed.verdict.passed
            if not file.exists():
                return Written(passed)
            built = self.built(model, file) if build else None
            right, told = self.right(model, file) if run else (None, "")
            return Written(
                passed,
                built=None if built is None else built.built,
                folded=() if built is None else folded(built.kernels, onnx.load(file)),
                right=right,
                sums=fixed.verdict.sums,
                said=(*refusals(built), *filter(None, [told])),
            )

    def plain(self, model: Model) -> tuple[bool, bool]:
        """Return whether the file with every node in FP16 passes: emulated, and on WebGPU.

        The emulation rounds each product and addition, as WebGPU does.
        """
        network = load_network(model.file)
        none: frozenset[Any] = frozenset()
        made = rewrite(network, roles_of(network), none, FP16, fixed=none, low_io=none)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            file = Path(folder) / "plain.onnx"
            ir.save(made.model, file)
            try:
                session = Session(emulate_typed(load_network(file).model, accumulate="each"))
                emulated, _ = self._right(model, [session.run(sample) for sample in model.samples])
            except HalfwiseError:
                emulated = False
            return emulated, self.right(model, file)[0] is True

    def right(self, model: Model, file: Path) -> tuple[bool | None, str]:
        """Return whether WebGPU's outputs of a file are right, and how far off.

        Where there are none, None and what failed.
        """
        try:
            outputs = self.webgpu.run(file, model.samples)
        except RunFailed as failed:
            return None, failed.message
        return self._right(model, outputs)

    def _right(self, model: Model, outputs: Sequence[Sample]) -> tuple[bool, str]:
        """Return whether `verify` calls outputs right, and how far off they are."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            recorded = Path(folder) / "outputs.npz"
            stacks = {name: np.stack([o[name] for o in outputs]) for name in outputs[0]}
            np.savez(recorded, **stacks)  # type: ignore[arg-type]
            judging = {**model.judging, "allow_unjudged": True, "allow_random": True}
            try:
                run = halfwise.verify(model.file, recorded, model.samples, **judging).run
            except HalfwiseError as error:
                return False, error.message
            worst = max((output.rel_max for output in run.verdict.outputs.values()), default=0.0)
            return run.verdict.passed, f"{worst:.2g} of the largest value"

    def built(self, model: Model, file: Path) -> Build:
        """Return the build of a file for the shapes of the samples."""
        inputs = {value.name for value in onnx.load(file, load_external_data=False).graph.input}
        shapes = {}
        for name in inputs & set(model.samples[0]):
            each = [np.shape(sample[name]) for sample in model.samples]
            least, most = np.min(each, axis=0).tolist(), np.max(each, axis=0).tolist()
            shapes[name] = (least, most, most)
        return self.rtx.build(file, shapes=shapes, seconds=SECONDS)


def refusals(build: Build | None) -> tuple[str, ...]:
    """Return what the builder said, each in one line; nothing of a build that succeeded."""
    errors = () if build is None else build.errors
    return tuple(f"{e.operator} {e.text}".strip().splitlines()[0][:200] for e in errors[:2])
