"""The call of onnxconverter-common's `float16` module, so that one import changes."""

import warnings
from collections.abc import Collection, Sequence
from typing import Literal, Unpack

import onnx
import onnx_ir as ir

from halfwise.case import Rules
from halfwise.declarations import Inputs, Options
from halfwise.errors import UsageError
from halfwise.fixing.attribute import attribute
from halfwise.fixing.command import fix
from halfwise.fixing.plan.rules import apply_rules
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, node_name
from halfwise.graph.norms import NORMALISATIONS
from halfwise.graph.roles import float_io, roles_of
from halfwise.graph.written_out import written_out
from halfwise.options.loading import load_model
from halfwise.options.options import Model
from halfwise.records import NodeName, Observations, TensorName
from halfwise.reporting.parts import first_of
from halfwise.reporting.remarks import message

CERTAIN = 1.0
"""From this severity on, a guard is no mere possibility (`fixing.attribute`)."""


def convert_float_to_float16(
    model: Model,
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | Sequence[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    check_fp16_ready: bool = True,
    *,
    inputs: Inputs | None = None,
    **options: Unpack[Options],
) -> onnx.ModelProto:
    """Return the model in FP16, with what FP16 breaks in FP32; arguments of onnxconverter-common.

    With inputs it is what `fix` finds: the fewest nodes in FP32, repaired and judged on held-out
    samples. Without, nodes stay in FP32 where constants, types or a written-out normalisation show
    that FP16 breaks them, and nothing is judged.

    Args:
        model: FP32 model: path or proto; a proto is not changed.
        min_positive_val: Not needed: constants keep their values where FP16 can hold them.
        max_finite_val: Not needed: only constants beyond FP16's 65504 are stored as that.
        keep_io_types: Whether inputs and outputs stay FP32: all of them, or none.
        disable_shape_infer: Not needed.
        op_block_list: Operator types that stay in FP32; those that the model lacks are ignored.
        node_block_list: Names of nodes that stay in FP32; likewise.
        check_fp16_ready: Not needed: a model that is partly in FP16 is read as well.
        inputs: Real samples, as for `fix`; None for none.
        options: With inputs, further options of `fix`.

    Raises:
        HalfwiseError: see `fix`.

    Warns:
        UserWarning: nothing was judged, or the verdict failed.
    """
    del min_positive_val, max_finite_val, disable_shape_infer, check_fp16_ready
    if not isinstance(keep_io_types, bool):
        raise UsageError(
            "keep_io_types is a list; expected True or False.",
            "halfwise keeps the types of all inputs and outputs, or of none.",
        )
    rules = Rules()
    if inputs is None or node_block_list or op_block_list:
        network = load_model(model)
        rules = _rules(network, node_block_list or (), op_block_list or ())
        if inputs is None:
            return _unjudged(network, rules, low_io=not keep_io_types)
    io: Literal["fp32", "fp16"] = "fp32" if keep_io_types else "fp16"
    given: Options = {"io": io, "keep": rules.keep, "keep_op": rules.keep_op, **options}
    result = fix(model, inputs, **given)
    if not result.run.verdict.passed:
        warnings.warn(str(result), stacklevel=2)
    assert result.model is not None
    return result.model


def _rules(network: Network, nodes: Collection[str], ops: Collection[str]) -> Rules:
    """Return that those of the nodes and operator types stay in FP32 that the network has."""
    names = {node_name(node) for node in network.nodes()} | set(network.original_names.values())
    types = {node.op_type for node in network.nodes()}
    return Rules(
        keep=tuple(name for name in nodes if name in names),
        keep_op=tuple(op for op in ops if op in types),
    )


def _unjudged(network: Network, rules: Rules, *, low_io: bool) -> onnx.ModelProto:
    """Return the model in FP16 but for what needs no data to be known."""
    network, _ = upcast(network)
    roles = roles_of(network)
    unseen = Observations(tensors=(), inner=(), samples=())
    kept = set(apply_rules(network, roles, rules).kept)
    guards = attribute(network, roles, unseen, FP16)
    # An eps that FP16 stores as zero needs no data to be known.
    shown = [g for g in guards if g.severity >= CERTAIN or g.names.get("becomes") == "zero"]
    for guard in shown:
        kept.update(guard.nodes)
    for op in NORMALISATIONS:
        kept.update(node for group in written_out(network, op) for node in group)
    made = assigned(network, kept, low_io=low_io)
    judged = (
        "Nothing was judged, as there are no inputs: nodes stay in FP32 only by what constants and "
        "types show. Overflows in real data are not among it; give inputs=…."
    )
    named = first_of([f"{guard.node}: {message(guard)}." for guard in shown])
    warnings.warn("\n".join([judged, *named]), stacklevel=3)
    return ir.serde.serialize_model(made)


def assigned(network: Network, fp32: Collection[NodeName], *, low_io: bool = False) -> ir.Model:
    """Return an FP32 network in FP16 but for `fp32`, of which those that have to be FP32 count not.

    Args:
        network: The model in FP32.
        fp32: Nodes that stay so.
        low_io: Whether float inputs and outputs become FP16.
    """
    roles = roles_of(network)
    kept = frozenset(node for node in fp32 if roles[node].free)
    ends = float_io(network) if low_io else frozenset[TensorName]()
    return rewrite(network, roles, kept, FP16, fixed=kept - roles.computing, low_io=ends).model
