"""Checks what the documentation claims of the emulation: it is consistent, and it is needed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, at_least, at_most, equal
from bench.inference import difference, loaded
from bench.runs import Workbench, digits
from halfwise.case import Case, Sample
from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, Switched, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.movement import carried
from halfwise.graph.roles import Roles, roles_of
from halfwise.metrics import Outputs
from halfwise.records import NodeName

PLANS = 20
DIFFERENCE = 1e-6
LEVELS = dict(ort.GraphOptimizationLevel.__members__)


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures of the available models, and which models are missing."""
    figures: list[Figure] = []
    for subject in bench.subjects():
        figures += plans_agree(subject.name, loaded(subject))
    return [*figures, *cast_pairs(), *false_oracle()], bench.missing()


def plans_agree(name: str, case: Case) -> list[Figure]:
    """Compare the switched session, which emulates any plan, with typed emulation of each plan."""
    roles = roles_of(case.network)
    switched = emulate_switched(case.network, roles, FP16)
    session = Session(switched.model)
    free = [node for node, role in roles.items() if role.free]
    rng = np.random.default_rng(0)
    differences, nonfinite = [], 0
    for i in range(PLANS):
        chosen = frozenset(
            n for n, u in zip(free, rng.random(len(free)), strict=True) if u < _share(i)
        )
        plan = chosen | carried(case.network, roles, chosen)
        sample = case.calibration[i % len(case.calibration)]
        one = session.run({**sample, SWITCH_INPUT: switched.switches.switch(plan)})
        other = _typed(case, roles, plan, sample)
        nonfinite += not all(np.isfinite(a).all() for a in one.values())
        differences.append(difference(one, other))
    note = f"{nonfinite} of {PLANS} plans give NaN or infinite outputs, alike in both"
    return [
        at_most(
            f"{name}: switched − typed emulation, {PLANS} plans", max(differences), DIFFERENCE, note
        ),
        _reproduces(name, case, roles, session, switched),
    ]


def _share(i: int) -> float:
    """Return the share of nodes that plan i keeps: from nearly none to nearly all."""
    return (i + 0.5) / PLANS


def _typed(
    case: Case, roles: Roles, plan: frozenset[NodeName], sample: Sample
) -> dict[str, np.ndarray]:
    made = rewrite(case.network, roles, plan, FP16, fixed=frozenset(), low_io=frozenset())
    return Session(emulate_typed(made.model)).run(sample)


def _reproduces(
    name: str, case: Case, roles: Roles, session: Session, switched: Switched
) -> Figure:
    sample = case.calibration[0]
    everything = frozenset(node for node, role in roles.items() if role.free)
    plain = Session(case.network.model).run(sample)
    one = session.run({**sample, SWITCH_INPUT: switched.switches.switch(everything)})
    other = _typed(case, roles, everything, sample)
    worst = max(difference(plain, one), difference(plain, other))
    return equal(f"{name}: all nodes kept − original, both emulations", worst, 0.0)


def cast_pairs() -> list[Figure]:
    """Count the optimisation levels at which a Cast pair FP32 → FP16 → FP32 still rounds."""
    x = np.array([[1 + 2**-12, 0.1, 1e5, 1e-9]], np.float32)
    with np.errstate(over="ignore"):
        rounded = x.astype(np.float16).astype(np.float32)
    survived = 0
    for level in LEVELS.values():
        outputs = [_run(model, x, level) for model in (_matmul_pair(), _conv_pair(), _bare_pair())]
        survived += all(np.array_equal(y.ravel(), rounded.ravel()) for y in outputs)
    note = f"{', '.join(LEVELS)}; between MatMul and Add, Conv and Relu, input and output"
    return [
        equal(f"levels of {len(LEVELS)} at which Cast pairs round", survived, len(LEVELS), note)
    ]


def false_oracle() -> list[Figure]:
    """Run FP16 models in ONNX Runtime on the CPU, and in the emulation of what FP16 does."""
    x = np.full((1, 8, 4, 4), 100, np.float16)
    model = _overflowing_conv()
    emulated = Session(emulate_typed(network_from_proto(model).model)).run(
        {"x": x.astype(np.float32)}
    )
    real = _run(model, x, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    note = f"ONNX Runtime gives {real.ravel()[0]:g} where FP16 overflows"
    right, truth, count = _digits_in_fp16()
    return [
        equal(
            "Conv that overflows: finite in ONNX Runtime on the CPU",
            bool(np.isfinite(real).all()),
            wanted=True,
            note=note,
        ),
        equal(
            "Conv that overflows: infinite in the emulation",
            bool(np.isinf(emulated["y"]).all()),
            wanted=True,
        ),
        at_least(
            f"digits in FP16: images of {count} classed as FP32 does by ONNX Runtime on the CPU",
            right,
            0.9 * count,
        ),
        at_most(
            f"digits in FP16: images of {count} classed as FP32 does by the emulation",
            truth,
            0.5 * count,
        ),
    ]


def _digits_in_fp16() -> tuple[int, int, int]:
    """Count images that the all-FP16 model classes as FP32 does.

    Returns:
        The count on the CPU, the count in emulation, and the number of images.
    """
    case = loaded(digits())
    roles = roles_of(case.network)
    made = rewrite(case.network, roles, frozenset(), FP16, fixed=frozenset(), low_io=frozenset())
    options = ort.SessionOptions()
    options.log_severity_level = 4
    proto = ir.serde.serialize_model(made.model).SerializeToString()
    cpu = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    emulation, plain = Session(emulate_typed(made.model)), Session(case.network.model)
    right = truth = 0
    for sample in case.calibration:
        expected = _class(plain.run(sample))
        right += int(np.argmax(cpu.run(None, dict(sample))[0])) == expected
        truth += _class(emulation.run(sample)) == expected
    return right, truth, len(case.calibration)


def _class(outputs: Outputs) -> int:
    return int(np.argmax(next(iter(outputs.values()))))


def _run(model: onnx.ModelProto, x: np.ndarray, level: ort.GraphOptimizationLevel) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    y: np.ndarray = session.run(None, {"x": x.reshape(_shape(model))})[0]
    return y


def _shape(model: onnx.ModelProto) -> list[int]:
    return [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]


def _pair(value: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [value], [f"{value}_half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [f"{value}_half"], [f"{value}_wide"], to=TensorProto.FLOAT),
    ]


def _matmul_pair() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        *_pair("a"),
        helper.make_node("Add", ["a_wide", "b"], ["y"]),
    ]
    weights = {"w": np.eye(4, dtype=np.float32), "b": np.zeros(4, np.float32)}
    return _model(nodes, [1, 4], weights)


def _conv_pair() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        *_pair("a"),
        helper.make_node("Relu", ["a_wide"], ["y"]),
    ]
    weights = {"w": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)}
    return _model(nodes, [1, 4, 1, 1], weights)


def _bare_pair() -> onnx.ModelProto:
    nodes = [*_pair("x"), helper.make_node("Identity", ["x_wide"], ["y"])]
    return _model(nodes, [1, 4], {})


def _overflowing_conv() -> onnx.ModelProto:
    """Return FP16 Conv, whose result is 80 000, then Mul by 2⁻¹⁰."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "c"], ["y"]),
    ]
    weights = {"w": np.full((8, 8, 1, 1), 100, np.float16), "c": np.array(2**-10, np.float16)}
    return _model(nodes, [1, 8, 4, 4], weights, TensorProto.FLOAT16)


def _model(
    nodes: list[onnx.NodeProto],
    shape: list[int],
    weights: dict[str, np.ndarray],
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, dtype, shape) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
