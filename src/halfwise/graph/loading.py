"""Load ONNX files into normal form.

Normal form: model-local functions inlined, Constant nodes lifted to initializers, initializers not
listed as inputs, CastLike written as Cast, nodes in topological order, every node and value with a
unique name and a type.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.intake import (
    checked,
    contradicted,
    declared_shapes,
    describe_given,
    drop_unused_constants,
    inline_functions,
    name_cast_types,
    name_graphs,
    name_uniquely,
    open_negative_sizes,
    refuse_unreadable,
    refuse_unusable,
    restore_sizes,
    take_types,
)
from halfwise.graph.model import (
    Network,
    constant_array,
    graphs_of,
    is_standard,
)
from halfwise.graph.protobufs import (
    blocks,
    external_files,
    find_beside,
    graphs_in,
    read_proto,
    refuse_files,
    said,
    silent,
    skeleton,
    weights_folder,
)
from halfwise.graph.types import mend_types
from halfwise.graph.weights import map_files, own_weights
from halfwise.records import NodeName

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
_STEPS: tuple[Callable[[ir.Model], Any], ...] = (
    inline_functions,
    lambda model: name_graphs(graphs_of(model)),
    lambda model: open_negative_sizes(graphs_of(model)),
    passes.RemoveInitializersFromInputsPass(),
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    passes.TopologicalSortPass(),
)
"""The first steps to the normal form, in place."""


def load_network(path: Path, progress: Callable[[int, int, str], None] | None = None) -> Network:
    """Return the model of an ONNX file in normal form.

    Args:
        path: The file.
        progress: Called with the megabytes of weights in other files that are read, the number of
            all of them, and "MB".

    Raises:
        CaseError: not a file, not ONNX, truncated, external data missing or outside the model's
            folder, inputs or outputs that hold maps, or a graph that the ONNX checker refuses.
    """
    digest = hashlib.sha256()
    with ThreadPoolExecutor() as beside:  # as it takes as long as parsing
        proto = read_proto(path, lambda content: beside.submit(digest.update, content))
    files = dict.fromkeys(external_files(proto, path).values())
    files.pop(path, None)
    done, size = 0, sum(file.stat().st_size for file in files)
    for block in chain.from_iterable(map(blocks, files)):
        digest.update(block)
        done += len(block)
        if progress is not None:
            progress(done // 10**6, size // 10**6, "MB")
    folder = weights_folder(proto, path)
    model = _deserialise(proto, path)
    # This frees the memory of a large model once its weights are in a file.
    del proto
    find_beside(model, folder)
    return normalise(model, path=path, sha256=digest.hexdigest())


def network_from_proto(proto: onnx.ModelProto) -> Network:
    """Return a model from memory in normal form; `proto` stays. Errors are as in `load_network`."""
    refuse_files(proto)
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return normalise(_deserialise(copy, None), path=None, sha256=digest)


def normalise(model: ir.Model, *, path: Path | None, sha256: str) -> Network:
    """Bring `model` into normal form, in place, and wrap it.

    Declared sizes of computed values are only claims: they stay where ONNX infers the same. Those
    of outputs that no node reads also stay where ONNX infers none, if it contradicts no other.
    Names of axes stay.

    Raises:
        CaseError: the graph is cyclic, ill-typed or otherwise refused by the ONNX checker, or a
            constant's data is incomplete.
    """
    model.ir_version = max(model.ir_version, _FIRST_IR_VERSION)
    if not any(is_standard(node) for node in model.graph.all_nodes()):
        model.opset_imports.setdefault("", _SPARE_OPSET)
    with _explaining_refusals(path):
        for step in _STEPS:
            step(model)
        drop_unused_constants(graphs_of(model))
        renamed = name_uniquely(model)
        _check_nodes(model)
        map_files(model)
        _check_constants(model)
        clashes = mend_types(model)
        for clash in clashes:
            if not clash.mends:
                raise ValueError(f"{clash.words}; {clash.cure}")
        own_weights(model)
        _check_and_infer(model)
        name_cast_types(graphs_of(model))
        drop_unused_constants(graphs_of(model))
    names = {NodeName(new): old for new, old in renamed.items()}
    return Network(model, path, sha256, names, mistyped=tuple(clash.words for clash in clashes))


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
def _explaining_refusals(
    path: Path | None, what: str = "ONNX refuses the graph in {}"
) -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        message = what.format(path or "the model")
        raise CaseError(f"{message}: {said(error)}", check_again(path)) from error


def _deserialise(proto: onnx.ModelProto, path: Path | None) -> ir.Model:
    refuse_unusable(proto, path or "The model")
    refuse_unreadable(proto)
    with _explaining_refusals(path, "The graph in {} cannot be read"), silent():
        describe_given(proto.graph)
        return ir.serde.deserialize_model(proto)


def _check_nodes(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is not None and value.producer() is None and value.graph is None:
                raise ValueError(f"node {node.name!r} reads {value.name!r}, which nothing computes")
        axis = node.attributes.get("axis")
        # ONNX and ONNX Runtime truncate a larger axis to its low 32 bits.
        if axis is not None and axis.type is ir.AttributeType.INT and abs(axis.value) >> 31:
            raise ValueError(f"node {node.name!r} has the axis {axis.value}, which no tensor has")


def _check_constants(model: ir.Model) -> None:
    for value in (v for graph in graphs_of(model) for v in graph.initializers.values()):
        if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING:
            try:
                value.const_value.numpy()
            except (ValueError, OSError, AssertionError) as error:
                what = f"the data of constant {value.name!r} is incomplete: {error}"
                raise ValueError(what) from None


def _check_and_infer(model: ir.Model) -> None:
    """Run the ONNX checker and give every value the type and shape that ONNX infers.

    onnx-ir's own pass only logs errors, and mistakes a sequence of tensors for a tensor.
    """
    for node in model.graph.all_nodes():
        if is_standard(node, "Loop"):
            # ONNX infers no type for the condition of a Loop without an initial one.
            for condition in node.attributes["body"].as_graph().inputs[1:2]:
                condition.type = condition.type or ir.TensorType(ir.DataType.BOOL)
    proto = skeleton(model)[0]
    declared = declared_shapes(graphs_in(proto.graph))
    inferred = checked(proto)
    take_types(model, inferred)
    if not contradicted(declared, declared_shapes(graphs_in(inferred.graph))):
        restore_sizes(model.graph.outputs, declared)


def numbers(value: ir.Value | None) -> NDArray[np.generic] | None:
    """Return the array of a numeric constant; None for anything else."""
    if value is None or value.const_value is None or value.const_value.dtype == ir.DataType.STRING:
        return None
    return constant_array(value)
