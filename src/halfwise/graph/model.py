"""Load an ONNX file into normal form, and serialise it again.

Normal form: model-local functions inlined, Constant nodes lifted to initializers, initializers not
listed as inputs, CastLike written as Cast, nodes in topological order, every node and value with a
unique name and a type.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.declared import contradicted, declared_shapes, restore_sizes
from halfwise.graph.intake import (
    ONNX_DOMAINS,
    Flaw,
    Repair,
    checked,
    refuse_maps,
    repair,
    take_types,
)
from halfwise.graph.normal_form import (
    check_constants,
    drop_unused_constants,
    inline_functions,
    name_cast_types,
    name_uniquely,
    open_negative_sizes,
    refuse_unusable,
)
from halfwise.graph.reading import PER_MB, blocks, megabytes, normalising, read_proto, said
from halfwise.graph.serialisation import (
    external_files,
    find_beside,
    graphs_in,
    refuse_files,
    silent,
    skeleton,
    weights_folder,
)
from halfwise.graph.weights import map_files, own_weights
from halfwise.progress import Weighed
from halfwise.records import NodeName, TensorName

_FIRST_IR_VERSION = 4
"""First IR version in which initializers need not be graph inputs, as in the normal form."""
_SPARE_OPSET = 17
"""Default operator set for a model that imports none: rewriting adds Casts."""
REFUSALS = (
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    ir.passes.PreconditionError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)
"""Exceptions that onnx and onnx-ir raise for a graph that they refuse."""
QUANTISED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "QLinear",
    "MatMulInteger",
    "ConvInteger",
    "QGemm",
)
"""Prefixes of op types that quantise, dequantise or compute with quantised integers, in any domain;
for example, ONNX Runtime's QLinearAdd."""
SMALL_BYTES = 1 << 16
"""Largest constant whose results are stored; a 1 GiB model has at most 16,384 larger ones."""


@dataclass(frozen=True, eq=False)
class Network:
    """A model in normal form. Never modified: rewriting starts from `copy()`.

    Attributes:
        model: The model.
        path: Its file; None if made in memory.
        sha256: Hash of the file and its external data.
        original_names: For each renamed node, its name in the user's file ("" for unnamed).
        repairs: Harmless flaws in the file that were repaired.
    """

    model: ir.Model
    path: Path | None
    sha256: str
    original_names: Mapping[NodeName, str]
    repairs: tuple[Repair, ...] = ()

    def copy(self) -> ir.Model:
        """Return a copy whose graph may be changed; tensors are shared."""
        return self.model.clone()

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    @property
    def opset(self) -> int:
        """Version of the default ONNX operator set."""
        return opset_of(self.model)

    def nodes(self) -> Iterator[ir.Node]:
        """Yield the nodes of the main graph in topological order."""
        return iter(self.graph)

    def graphs(self) -> tuple[ir.Graph, ...]:
        """Return the main graph and the bodies of If, Loop and Scan, at any depth."""
        return graphs_of(self.model)


def opset_of(model: ir.Model) -> int:
    """Return the version of the default ONNX operator set (1 if none is imported)."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))


def graphs_of(model: ir.Model) -> tuple[ir.Graph, ...]:
    """Return the main graph of `model` and the bodies of If, Loop and Scan, at any depth."""
    return (model.graph, *model.graph.subgraphs())


def is_standard(node: ir.Node, *ops: str) -> bool:
    """Return whether the operator of `node` is ONNX's own, and one of `ops` if given."""
    return node.domain in ONNX_DOMAINS and (not ops or node.op_type in ops)


def node_name(node: ir.Node) -> NodeName:
    """Return the node's name, which the normal form guarantees."""
    assert node.name is not None
    return NodeName(node.name)


def tensor_name(value: ir.Value) -> TensorName:
    """Return the value's name, which the normal form guarantees."""
    assert value.name is not None
    return TensorName(value.name)


def constant_array(value: ir.Value) -> NDArray[np.generic]:
    """Return the array of an initializer; its dtype is from ml_dtypes if NumPy lacks the type."""
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


def load_network(path: Path, progress: Callable[[int, int, str], None] | None = None) -> Network:
    """Return the model of an ONNX file in normal form.

    Args:
        path: The file.
        progress: Called with the weight of the work done, the weight of all of it, and `PERCENT`.

    Raises:
        CaseError: not a file, not ONNX, truncated, external data missing or outside the model's
            folder, inputs or outputs that hold maps, or a graph that the ONNX checker refuses.
    """
    digest, work = hashlib.sha256(), Weighed(progress)
    proto = read_proto(path, work, digest.update)
    files = dict.fromkeys(external_files(proto, path).values())
    files.pop(path, None)
    work.expect(PER_MB * megabytes(sum(file.stat().st_size for file in files)))
    quarter = normalising(proto) / 4
    for block in chain.from_iterable(blocks(file, work) for file in files):
        digest.update(block)
    folder = weights_folder(proto, path)
    repairs, model = _deserialise(proto, path)
    # This frees the memory of a large model once its weights are in a file.
    del proto
    find_beside(model, folder)
    given: dict[str, Any] = {"path": path, "sha256": digest.hexdigest(), "repairs": repairs}
    return normalise(model, **given, over=partial(work.did, quarter))


def network_from_proto(proto: onnx.ModelProto) -> Network:
    """Return a model from memory in normal form; `proto` stays. Errors are as in `load_network`."""
    refuse_files(proto)
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    own = onnx.ModelProto()
    own.CopyFrom(proto)
    repairs, model = _deserialise(own, None)
    return normalise(model, path=None, sha256=digest, repairs=repairs)


def normalise(
    model: ir.Model,
    *,
    path: Path | None,
    sha256: str,
    repairs: tuple[Repair, ...] = (),
    over: Callable[[], object] = lambda: None,
) -> Network:
    """Bring `model` into normal form, in place, and wrap it.

    Declared sizes of computed values are only claims: they stay where ONNX infers the same. Those
    of outputs that no node reads also stay where ONNX infers none, if it contradicts no other.
    Names of axes stay. `over` is called after each of three quarters of the work.

    Raises:
        CaseError: the graph is cyclic, ill-typed or otherwise refused by the ONNX checker, or a
            constant's data is incomplete.
    """
    model.ir_version = max(model.ir_version, _FIRST_IR_VERSION)
    if not any(is_standard(node) for node in model.graph.all_nodes()):
        model.opset_imports.setdefault("", _SPARE_OPSET)
    with _explaining_refusals(path):
        inline_functions(model)
        open_negative_sizes(graphs_of(model))
        passes.RemoveInitializersFromInputsPass()(model)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        unsorted = passes.TopologicalSortPass()(model).modified
        drop_unused_constants(graphs_of(model))
        renamed = name_uniquely(model)
        _check_nodes(model)
        map_files(model)
        check_constants(graphs_of(model))
        own_weights(model)
        over()
        misdeclared = _check_and_infer(model, over)
        name_cast_types(graphs_of(model))
        drop_unused_constants(graphs_of(model))
    repairs += (Repair(Flaw.UNSORTED),) * unsorted
    repairs += (Repair(Flaw.MISDECLARED, misdeclared),) * bool(misdeclared)
    names = {NodeName(new): old for new, old in renamed.items()}
    return Network(model=model, path=path, sha256=sha256, original_names=names, repairs=repairs)


def infer_again(network: Network) -> None:
    """Infer types and shapes again, in place, after some values have gained theirs.

    Raises:
        CaseError: the types contradict each other.
    """
    with _explaining_refusals(network.path):
        _check_and_infer(network.model)


def check_again(path: Path | None) -> str:
    """Return a hint for a model that ONNX refuses; `path` is None if it has no file."""
    if path is None:
        return "Check it with onnx.checker.check_model, and export it again."
    # `python -m onnx.checker` checks nothing: the module does nothing when run.
    name = json.dumps(str(path), ensure_ascii=False)
    code = f"import onnx; onnx.checker.check_model({name}, full_check=True)"
    return f"Run `{shlex.join(['python', '-c', code])}`, and export it again."


@contextmanager
def _explaining_refusals(path: Path | None) -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise CaseError(
            f"ONNX refuses the graph in {path or 'the model'}: {said(error)}", check_again(path)
        ) from error


def _deserialise(proto: onnx.ModelProto, path: Path | None) -> tuple[tuple[Repair, ...], ir.Model]:
    refuse_unusable(proto, path or "The model")
    refuse_maps(proto)
    try:
        with silent():
            return repair(proto), ir.serde.deserialize_model(proto)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CaseError(
            f"The graph in {path or 'the model'} cannot be read: {said(error)}", check_again(path)
        ) from error


def _check_nodes(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is not None and value.producer() is None and value.graph is None:
                raise ValueError(f"node {node.name!r} reads {value.name!r}, which nothing computes")
        axis = node.attributes.get("axis")
        # ONNX and ONNX Runtime truncate a larger axis to its low 32 bits.
        if axis is not None and axis.type is ir.AttributeType.INT and abs(axis.value) >> 31:
            raise ValueError(f"node {node.name!r} has the axis {axis.value}, which no tensor has")


def _check_and_infer(model: ir.Model, over: Callable[[], object] = lambda: None) -> tuple[str, ...]:
    """Run the ONNX checker and give every value the type and shape that ONNX infers.

    onnx-ir's own pass only logs errors, and mistakes a sequence of tensors for a tensor.

    Returns:
        The values whose declared shape differs from the inferred one.
    """
    for node in model.graph.all_nodes():
        if is_standard(node, "Loop"):
            # ONNX infers no type for the condition of a Loop without an initial one.
            for condition in node.attributes["body"].as_graph().inputs[1:2]:
                condition.type = condition.type or ir.TensorType(ir.DataType.BOOL)
    proto = skeleton(model)[0]
    over()
    declared = declared_shapes(graphs_in(proto.graph))
    inferred = checked(proto)
    over()
    take_types(model, inferred)
    wrong = contradicted(declared, declared_shapes(graphs_in(inferred.graph)))
    if not wrong:
        restore_sizes(model.graph.outputs, declared)
    return wrong


def add_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Return a new initializer of `graph` with `array`, of any shape and type."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def small_constant(value: ir.Value | None) -> NDArray[np.float32] | None:
    """Return f32[*shape] of a constant of at most `SMALL_BYTES`, else None.

    A node that reads only constants is ready at once, and ONNX Runtime walks its list of ready
    nodes whenever it adds one: with one such node per weight, loading takes n² steps. So it is
    better to store results computed from small constants. Large constants are few, and copies of
    all of them would not fit into memory.
    """
    tensor = value.const_value if value is not None else None
    if tensor is None or tensor.nbytes > SMALL_BYTES:
        return None
    return np.asarray(tensor.numpy(), np.float32)
