"""Make the strongly typed model of a plan, and check that it is a model."""

from contextlib import suppress
from pathlib import Path

import onnx
import onnx_ir as ir

from halfwise.case import CPU, Runtime
from halfwise.emulation.ort import Session
from halfwise.errors import BuildFailed, CaseError, KernelMissing
from halfwise.formats import Format
from halfwise.graph.casts import Rewritten
from halfwise.graph.casts import rewrite as cast
from halfwise.graph.inference import checked
from halfwise.graph.intake import checkable
from halfwise.graph.model import Network, is_standard
from halfwise.graph.movement import fewest_casts
from halfwise.graph.roles import Roles
from halfwise.graph.slim import skeleton
from halfwise.graph.weights import LowWeights, is_large, map_files, weight_bytes
from halfwise.records import NodeName, TensorName

EXTERNAL_DATA_BYTES = 1 << 30
"""Above this the weights go into a file of their own: protobuf ends at 2 GB.

Those of a large model do so too, because making one protobuf of them takes three times its size.
"""


def rewrite(
    network: Network,
    roles: Roles,
    assignment: frozenset[NodeName],
    fmt: Format,
    *,
    fixed: frozenset[NodeName],
    low_io: frozenset[TensorName],
    weights: LowWeights | None = None,
) -> tuple[Rewritten, frozenset[NodeName]]:
    """Return the mixed model with the fewest Casts, and the assignment that it implements.

    Args:
        network: FP32 model.
        roles: Roles of its nodes.
        assignment: All free nodes that are FP32.
        fmt: The low format.
        fixed: Moving nodes whose precision a user rule sets.
        low_io: Float graph inputs and outputs that get the low type.
        weights: The network's weights in the low format, where they are made already.
    """
    placed = fewest_casts(network, roles, assignment, fmt, fixed=fixed, low_io=low_io)
    return cast(network, roles, placed, fmt, low_io=low_io, weights=weights), placed


def save_checked(model: ir.Model, path: Path, *, runtime: Runtime = CPU) -> None:
    """Write `model` to `path` and make sure that the file is valid and loads.

    The reference has been loaded, so a kernel that ONNX Runtime lacks now is one for a low type:
    its CPU has few for BF16. Such a file counts as valid, since ONNX Runtime checks the graph
    and its types before it looks for kernels, and expands what has none.

    Raises:
        BuildFailed: the ONNX checker with full shape inference, or ONNX Runtime, refuses it. That
            is a fault of halfwise.
    """
    beside = weight_bytes(model) > EXTERNAL_DATA_BYTES or is_large(model)
    external = f"{path.name}.data" if beside else None
    ir.save(model, path, external_data=external)
    try:
        written = ir.load(path)
        map_files(written)
        graph = skeleton(written)[0]
        if all(is_standard(n) for n in model.graph.all_nodes()):
            checked(graph)
        else:
            onnx.checker.check_model(checkable(graph))
        # A rule says that another runtime has them in a low type; a library here need not.
        with suppress(CaseError if any(map(_is_low_custom, written.graph)) else KernelMissing):
            Session(written, runtime=runtime)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, CaseError) as error:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        raise BuildFailed(
            f"The rewritten model is not valid: {error}",
            "This is a fault of halfwise; please report it with the model's operators and opset.",
        ) from error


def _is_low_custom(node: ir.Node) -> bool:
    low = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    values = (*node.inputs, *node.outputs)
    return not is_standard(node) and any(v and v.dtype in low for v in values)
