"""halfwise as a pass of Olive 0.13: `OnnxFloatToFloat16` that keeps what FP16 breaks in FP32.

Beside it, `passes.json` tells Olive where the pass is.
"""

from pathlib import Path
from typing import Any

from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import PassConfigParam

import halfwise


class HalfwiseFix(Pass):
    """`halfwise.fix`: the page of the run lies beside the model."""

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, PassConfigParam]:
        del accelerator_spec
        return {
            "inputs": PassConfigParam(type_=str, required=True, description="Real samples."),
            "options": PassConfigParam(
                type_=dict, default_value={}, description="Options of halfwise.fix."
            ),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: Any, output_model_path: str
    ) -> ONNXModelHandler:
        path = Path(resolve_onnx_path(output_model_path))
        run = path.parent / "halfwise"
        result = halfwise.fix(model.model_path, config.inputs, out=run, **config.options)
        if not result.run.verdict.passed:
            raise RuntimeError(str(result))
        for file in run.glob("model.onnx*"):  # with its weights, if they are in a file
            file.rename(path.parent / file.name)
        return ONNXModelHandler(model_path=str(path.parent), onnx_file_name="model.onnx")
