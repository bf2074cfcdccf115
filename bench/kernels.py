"""Each CUDA kernel alone: does it round like the emulation on equal inputs?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from bench.figures import Figure, reported
from halfwise.case import Case
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import Roles, is_float, roles_of

Tensors = Mapping[str, NDArray[np.generic]]


def equal_bits(name: str, case: Case, folder: Path) -> list[Figure]:
    """Return per operator the share of its FP16 results that equal the emulation bit for bit.

    Every node of the all-FP16 model is emulated on exactly the inputs that it had on the GPU, so
    no difference is inherited.
    """
    network, sample = case.network, case.calibration[0]
    roles = roles_of(network)
    real = {**_tensors_on_gpu(network, roles, sample, folder / "kernels.onnx"), **_rounded(sample)}
    shares: dict[str, list[float]] = defaultdict(list)
    for node in network.nodes():
        outputs = [v for v in node.outputs if is_float(v) and v.name in real]
        if not outputs or not roles[node_name(node)].free:
            continue
        found = _emulated(network, node, outputs[0], real)
        if found is not None:
            expected = real[tensor_name(outputs[0])].astype(np.float32)
            equal = (found == expected) | (np.isnan(found) & np.isnan(expected))
            shares[node.op_type].append(float(equal.mean()))
    return [
        reported(f"{name}: {op}, share of results equal to the emulation", float(np.mean(each)))
        for op, each in sorted(shares.items())
    ]


def _tensors_on_gpu(network: Network, roles: Roles, sample: Tensors, path: Path) -> Tensors:
    model = rewrite(network, roles, frozenset(), FP16).model
    outputs = {v.name for v in model.graph.outputs}
    wanted = {v.name for n in network.nodes() for v in n.outputs if is_float(v) and v.uses()}
    values = [v for n in model.graph for v in n.outputs if v.name in wanted - outputs]
    model.graph.outputs.extend(values)
    ir.save(model, path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # Otherwise sums differ from run to run: on Magika, SNR was 38 to 68 dB in twelve sessions.
    options.use_deterministic_compute = True
    providers = [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"]
    session = ort.InferenceSession(str(path), options, providers=providers)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(sample)), strict=True))


def _rounded(sample: Tensors) -> Tensors:
    floats = {n: a for n, a in sample.items() if a.dtype == np.float32}
    return {**sample, **{n: FP16.round(a.astype(np.float32)) for n, a in floats.items()}}


def _emulated(
    network: Network, node: ir.Node, output: ir.Value, real: Tensors
) -> NDArray[np.float32] | None:
    """Return `output` from emulating the node alone; None if an input is unknown."""
    feeds: dict[str, NDArray[np.generic]] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.const_value is not None:
            array = np.asarray(value.const_value.numpy())
            feeds[tensor_name(value)] = FP16.saturate(array) if is_float(value) else array
        elif tensor_name(value) in real:
            array = real[tensor_name(value)]
            feeds[tensor_name(value)] = array.astype(np.float32) if is_float(value) else array
        else:
            return None
    inputs = {n: ir.val(n, ir.DataType.from_numpy(a.dtype), a.shape) for n, a in feeds.items()}
    result = ir.val(output.name, ir.DataType.FLOAT)
    alone = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else inputs[tensor_name(v)] for v in node.inputs],
        node.attributes.values(),
        outputs=[result, *(ir.val("") for _ in node.outputs[1:])],
    )
    imports = dict(network.model.opset_imports)
    graph = ir.Graph(
        list(inputs.values()), [result], nodes=[alone], opset_imports=imports, name="alone"
    )
    try:
        session = Session(ir.Model(graph, ir_version=network.model.ir_version))
    except CaseError:
        return None
    return FP16.round(session.run(feeds)[tensor_name(output)].astype(np.float32))
