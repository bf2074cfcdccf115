"""The search on judges that are no emulation: one class each, and nothing else changes."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from halfwise.case import Sample
from halfwise.errors import RunFailed
from halfwise.fixing.plan.plan import NONE, Plan
from halfwise.fixing.space import Space
from halfwise.metrics import Outputs
from halfwise.records import replace
from tests import models
from tests.judges import RtxBuilder, WebGpu
from tests.unit.fixing.running import space_of


@dataclass
class OnWebGpu:
    """Runs the files of plans on WebGPU, in real FP16."""

    webgpu: WebGpu
    folder: Path
    files: dict[Plan, Path] = field(default_factory=dict)

    def prepare(self, plan: Plan, /) -> None:
        if plan not in self.files:
            self.files[plan] = self.folder / f"{len(self.files)}.onnx"
            ir.save(plan.of.write(plan)[0].model, self.files[plan])

    def run(self, sample: Sample, plan: Plan, /) -> Outputs:
        (outputs,) = self.webgpu.run(self.files[plan], [sample])
        return {name: array.astype(np.float32) for name, array in outputs.items()}

    def release(self) -> None:
        self.files.clear()


@dataclass
class InBuilder(OnWebGpu):
    """The same, for plans whose files TensorRT for RTX's builder takes."""

    rtx: RtxBuilder | None = None

    def run(self, sample: Sample, plan: Plan, /) -> Outputs:
        assert self.rtx is not None
        if not self.rtx.build(self.files[plan]).built:
            raise RunFailed("TensorRT for RTX does not build it.")
        return super().run(sample, plan)


def on(judge: OnWebGpu, space: Space) -> Space:
    """Return the same plans before another judge."""
    return replace(space, bench=space.bench.on(judge))


def test_a_search_on_webgpu_keeps_what_the_emulation_keeps(webgpu, tmp_path):
    emulated = space_of(models.layer_norm())
    found = on(OnWebGpu(webgpu, tmp_path), emulated).find()
    assert found.passed
    # A mean is a sum in FP16 there, so more may be kept.
    assert found.kept >= emulated.find().kept > NONE


def test_a_plan_that_a_builder_refuses_was_not_run(rtx, webgpu, tmp_path, monkeypatch):
    space = on(InBuilder(webgpu, tmp_path, rtx=rtx), space_of(models.layer_norm()))
    kept = space.find().kept
    assert space.evaluate(kept).passed
    refused = replace(rtx.build(tmp_path / "0.onnx"), engine=None, errors=())
    monkeypatch.setattr(rtx, "build", lambda _: refused)
    outcome = space.evaluate(space.choices)
    assert outcome.not_run
    assert not outcome.passed
