"""The model in ONNX Runtime, and its emulations, as sides of a comparison."""

from typing import Literal

import onnx_ir as ir

from halfwise.case import Samples, Settings
from halfwise.emulation.tensors import ModelTensors
from halfwise.emulation.tf32 import emulate_tf32
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.plan.custom import custom_roles
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import LOW_FORMATS, Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.tools.compare import ModelSide

Low = Literal["tf32", "fp16", "bf16"]


def reference(
    network: Network, samples: Samples, settings: Settings, *, optimise: bool = False
) -> ModelSide:
    """Return the model in ONNX Runtime; `optimise` lets it fuse, so that it rounds otherwise."""
    label = "ONNX Runtime, FP32, with its optimisations" if optimise else "ONNX Runtime, FP32"
    tensors = _tensors(network.model, samples, settings, optimise=optimise)
    return ModelSide(tensors, label, exact=not optimise)


def emulated(network: Network, samples: Samples, settings: Settings, low: Low) -> ModelSide:
    """Return the emulation of the model with everything in a low format, or its products in TF32.

    For BF16 the network has to have an opset that knows it.
    """
    if low == "tf32":
        model, label = emulate_tf32(network), "emulation, TF32 products"
    else:
        typed = all_low(network, LOW_FORMATS[low], settings)
        model = emulate_typed(typed, accumulate=settings.accumulate)
        label = f"emulation, all {low.upper()}"
    return ModelSide(_tensors(model, samples, settings, partial=True), label, low)


def all_low(network: Network, fmt: Format, settings: Settings) -> ir.Model:
    """Return the typed model with everything low that can be; inputs and outputs stay FP32."""
    custom = custom_roles(network, settings.rules, fmt)
    roles = roles_of(network, low_type(fmt), custom=custom)
    rewritten, _ = rewrite(network, roles, frozenset(), fmt, fixed=frozenset(), low_io=frozenset())
    return rewritten.model


def _tensors(
    model: ir.Model,
    samples: Samples,
    settings: Settings,
    *,
    optimise: bool = False,
    partial: bool = False,
) -> ModelTensors:
    return ModelTensors(
        model,
        samples,
        optimise=optimise,
        partial=partial,
        runtime=settings.runtime,
    )
