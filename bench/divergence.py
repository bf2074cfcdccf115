"""Faults planted in one node of a model: does `compare` name that node first?

A copy of a model gets one fault, drawn from a seed: weights (scaled, a channel zeroed or two
exchanged, or noise), an axis, an eps or another attribute of one node. The copy runs with ONNX
Runtime's optimisations and again with its products in TF32, so that every tensor is rounded
differently than in the original. A draw counts only if the copy runs and an output changes by more
than twice what TF32 may change at a node; the number of other draws is reported. The unaltered
models, run the same two ways, must show no divergence. Memory must stay that of a fixed number of
tensors, however many the model has.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from bench.figures import Figure, at_least, at_most, equal, reported
from bench.runs import ROOT, Subject, Workbench
from halfwise.case import Samples
from halfwise.emulation.runner import TOLERANCES, ModelRunner
from halfwise.emulation.typed import emulate_tf32
from halfwise.errors import HalfwiseError
from halfwise.graph.model import Network, tensor_name
from halfwise.metrics.difference import RelativeError
from halfwise.options.loading import load_case, load_model
from halfwise.options.options import understand
from halfwise.records import Comparison
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import Walk

SEED = 20
FAULTS = 30
WANTED = 29
SAMPLES = 2
NODES = (64, 512)
_TRIES = 400


@dataclass(frozen=True)
class Fault:
    """An alteration: the node, and what was changed."""

    model: str
    node: str
    op: str
    kind: str
    how: str


class Saboteur:
    """Alters one node in copies of a model, in one of the ways that its nodes allow."""

    def __init__(self, network: Network, name: str, rng: random.Random) -> None:
        # The normal form: nodes have names, constants are initializers.
        self._model = helper_proto(network).SerializeToString()
        self._name, self._rng = name, rng

    def model(self) -> onnx.ModelProto:
        """Return a copy without a fault."""
        return onnx.load_from_string(self._model)

    def fault(self, kind: str) -> tuple[onnx.ModelProto, Fault] | None:
        """Return a copy with a fault of this kind; None if no node can have one."""
        model = self.model()
        ways = list(_KINDS[kind](model, self._rng))
        if not ways:
            return None
        node, how, alter = self._rng.choice(ways)
        alter()
        return model, Fault(self._name, node.name, node.op_type, kind, how)


def helper_proto(network: Network) -> onnx.ModelProto:
    """Return the protobuf of a network."""
    import onnx_ir as ir  # noqa: PLC0415

    return ir.serde.serialize_model(network.model)


Way = tuple[onnx.NodeProto, str, Callable[[], None]]


def _own_constant(
    model: onnx.ModelProto, node: onnx.NodeProto, slot: int, array: np.ndarray
) -> None:
    """Give a node its own constant: others may read the old one."""
    name = f"{node.name}::altered"
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[slot] = name


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _weights(model: onnx.ModelProto, rng: random.Random) -> Iterator[Way]:
    found = _constants(model)
    products = ("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Add", "Mul")
    for node in model.graph.node:
        if node.op_type not in products:
            continue
        for slot, name in enumerate(node.input[:5]):
            array = found.get(name)
            if array is None or array.dtype != np.float32 or array.size < 4:
                continue
            how = rng.choice(["scaled", "channel", "exchanged", "noise"])
            new = _altered(array, how, np.random.default_rng(rng.randrange(2**32)))
            yield node, f"{how}, input {slot}", _later(_own_constant, model, node, slot, new)


def _altered(array: np.ndarray, how: str, rng: np.random.Generator) -> np.ndarray:
    new = array.copy()
    if how == "scaled":
        return (new * np.float32(1.1)).astype(np.float32)
    if how == "channel":
        new[rng.integers(len(new))] = 0
    elif how == "exchanged":
        first, second = rng.integers(len(new), size=2)
        new[[first, second]] = new[[second, first]]
    else:
        new += rng.normal(0, 0.1 * float(array.std()), array.shape).astype(np.float32)
    return new


def _axis(model: onnx.ModelProto, rng: random.Random) -> Iterator[Way]:
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "axis" and node.op_type in ("Softmax", "Gather", "Concat"):
                for axis in {-3, -2, -1, 0, 1, 2} - {attribute.i}:
                    yield (
                        node,
                        f"axis {attribute.i} to {axis}",
                        _later(setattr, attribute, "i", axis),
                    )
            if attribute.name == "axes" and len(attribute.ints) == 1:
                for axis in {-2, -1, 1, 2} - set(attribute.ints):
                    how = f"axes {list(attribute.ints)} to {[axis]}"
                    yield node, how, _later(_set_ints, attribute, [axis])
            if attribute.name == "perm":
                perm = list(attribute.ints)
                first, second = rng.sample(range(len(perm)), 2)
                perm[first], perm[second] = perm[second], perm[first]
                how = f"perm {list(attribute.ints)} to {perm}"
                yield node, how, _later(_set_ints, attribute, perm)
        if node.op_type == "Concat" and len(node.input) > 1:
            yield node, "order of inputs", _later(_exchange_inputs, node)


def _eps(model: onnx.ModelProto, rng: random.Random) -> Iterator[Way]:
    found = _constants(model)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                eps = attribute.f * rng.choice([1e3, 1e4, 1e5])
                yield node, f"epsilon to {eps:.3g}", _later(setattr, attribute, "f", eps)
        if node.op_type in ("Add", "Max"):
            for slot, name in enumerate(node.input):
                array = found.get(name)
                if array is None or array.size != 1 or not 0 < float(array.reshape(-1)[0]) <= 1e-3:
                    continue
                new = (array * rng.choice([1e3, 1e4, 1e5])).astype(array.dtype)
                yield (
                    node,
                    f"eps to {new.item():.3g}",
                    _later(_own_constant, model, node, slot, new),
                )


def _attribute(model: onnx.ModelProto, rng: random.Random) -> Iterator[Way]:
    changes = {
        "alpha": lambda a: setattr(a, "f", a.f * 1.5),
        "beta": lambda a: setattr(a, "f", a.f * 1.5),
        "mode": lambda a: setattr(a, "s", b"linear"),
        "nearest_mode": lambda a: setattr(a, "s", b"ceil"),
        "dilations": lambda a: _set_ints(a, [2] * len(a.ints)),
        "pads": lambda a: _set_ints(a, [*a.ints[::2], *a.ints[1::2]][::-1]),
    }
    operators = {
        "Relu": "LeakyRelu",
        "HardSwish": "Relu",
        "Sigmoid": "HardSigmoid",
        "Tanh": "Softsign",
    }
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in changes:
                how = f"{attribute.name} changed"
                yield node, how, _later(changes[attribute.name], attribute)
        # Asymmetric padding of the same size keeps the shapes and shifts what is seen.
        pads = next((a for a in node.attribute if a.name == "pads"), None)
        if pads is not None and len(pads.ints) == 4 and any(pads.ints):
            top, left, bottom, right = pads.ints
            shifted = [top + bottom, left, 0, right]
            yield node, f"pads to {shifted}", _later(_set_ints, pads, shifted)
        if node.op_type in operators:
            other = operators[node.op_type]
            yield node, f"{node.op_type} to {other}", _later(setattr, node, "op_type", other)
    rng.random()


def _later(function: Callable[..., object], *arguments: object) -> Callable[[], None]:
    def run() -> None:
        function(*arguments)

    return run


def _set_ints(attribute: onnx.AttributeProto, values: list[int]) -> None:
    attribute.ints[:] = values


def _exchange_inputs(node: onnx.NodeProto) -> None:
    node.input[0], node.input[1] = node.input[1], node.input[0]


_KINDS = {"weights": _weights, "axis": _axis, "eps": _eps, "attribute": _attribute}


def compare_copy(network: Network, samples: Samples, copy: Network, rounding: str) -> Comparison:
    """Compare a network with a copy that rounds differently."""
    right = ModelRunner(network.model, samples, "original", exact=True)
    if rounding == "tf32":
        other = ModelRunner(emulate_tf32(copy), samples, "copy, TF32", "tf32")
    else:
        other = ModelRunner(copy.model, samples, "copy, optimised", optimise=True)
    return find_divergence(Walk(network, samples, right, other))


def _shows(network: Network, copy: Network, samples: Samples) -> bool:
    """Return whether a fault changes an output by more than TF32 is allowed to."""
    names = [tensor_name(v) for v in network.graph.outputs]
    found = {name: RelativeError() for name in names}
    pairs = zip(
        ModelRunner(network.model, samples).get(names),
        ModelRunner(copy.model, samples).get(names),
        strict=True,
    )
    for index, (right, wrong) in enumerate(pairs):
        for name, error in found.items():
            error.add(right[name], wrong[name], index)
    return any(error.value > 2 * TOLERANCES["tf32"] for error in found.values())


class Divergence:
    """Plants faults in models, and lets `compare` find them."""

    def __init__(self, subjects: list[Subject]) -> None:
        self.cases = {}
        for subject in subjects:
            request = understand(str(ROOT / subject.inputs), {})
            case = load_case(ROOT / subject.model, request.data, request.criterion, split=False)
            self.cases[subject.name] = case.network, case.calibration.select(range(SAMPLES))
        self.rng = random.Random(SEED)  # noqa: S311 - a seeded draw, no secret
        self.rejected: dict[str, int] = {}

    def controls(self, rounding: str) -> int:
        """Return on how many unaltered models a divergence is reported."""
        return sum(
            bool(compare_copy(network, samples, network, rounding).first)
            for network, samples in self.cases.values()
        )

    def run(self) -> list[dict[str, object]]:
        """Plant faults of all kinds in all models in turn; return what was named for each."""
        saboteurs = {n: Saboteur(c[0], n, self.rng) for n, c in self.cases.items()}
        found: list[dict[str, object]] = []
        turns = [(name, kind) for kind in _KINDS for name in saboteurs]
        for turn in range(_TRIES):
            if len(found) == FAULTS:
                break
            name, kind = turns[turn % len(turns)]
            made = saboteurs[name].fault(kind)
            if made is None:
                continue
            told = self._try(name, *made)
            if told is None:
                self.rejected[kind] = self.rejected.get(kind, 0) + 1
                continue
            print(f"  {len(found) + 1}: {told}", flush=True)
            found.append(told)
        return found

    def _try(self, name: str, model: onnx.ModelProto, fault: Fault) -> dict[str, object] | None:
        """Return what was named; None if the fault cannot be run or shows nowhere."""
        network, samples = self.cases[name]
        try:
            copy = load_model(model)
            if not _shows(network, copy, samples):
                return None
            results = {r: compare_copy(network, samples, copy, r) for r in ("optimised", "tf32")}
        except HalfwiseError:
            return None
        return {
            **fault.__dict__,
            "error": f"{max(results['optimised'].outputs.values()):.3g}",
            **{rounding: list(result.first) for rounding, result in results.items()},
        }


def _peak(nodes: int) -> int:
    command = [sys.executable, str(ROOT / "bench" / "compare_memory.py"), str(nodes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Plant faults in every available model."""
    divergence = Divergence(bench.subjects())
    controls = {rounding: divergence.controls(rounding) for rounding in ("optimised", "tf32")}
    found = divergence.run()
    named = {r: sum(f[r] == [f["node"]] for f in found) for r in controls}
    kinds = ", ".join(f"{sum(f['kind'] == k for f in found)} {k}" for k in _KINDS)
    rejected = sum(divergence.rejected.values())
    bench.details["divergence"] = {"seed": SEED, "faults": found, "rejected": divergence.rejected}
    few, many = map(_peak, NODES)
    return [
        equal("faults planted", len(found), FAULTS, kinds),
        at_least("named first, copy with other kernels", named["optimised"], WANTED),
        at_least("named first, copy with TF32 products", named["tf32"], WANTED),
        equal(
            "false alarms, other kernels",
            controls["optimised"],
            0,
            f"{len(divergence.cases)} models",
        ),
        equal("false alarms, TF32 products", controls["tf32"], 0),
        at_most(
            f"peak memory, {NODES[1]} nodes over {NODES[0]}",
            many / few,
            1.2,
            f"{few / 1e6:.0f} and {many / 1e6:.0f} MB; each node makes 1 MB",
        ),
        reported("draws that do not run, or change no output by 0.4 %", rejected),
    ], bench.missing()
