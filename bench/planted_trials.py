"""The faults that `planted_faults` plants: what goes wrong, where, and in which network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx

from bench.planted_networks import FAMILIES, Drawn
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.model import read_model
from tests.fake_tensorrt.regions import Region, Wrong

DB30 = 10 ** (-30 / 20)
DB20 = 0.1


@dataclass(frozen=True)
class Trial:
    """One fault.

    Attributes:
        name: What is planted.
        family: Of networks.
        blocks: How deep the network is.
        fault: What goes wrong.
        batches: Sizes of the samples' first axis.
        version: Of TensorRT.
    """

    name: str
    family: str
    blocks: int
    fault: Wrong | Fault
    batches: tuple[int, ...] = (2, 2)
    version: str = "8.6.1"

    def network(self) -> Drawn:
        """Return the network."""
        return FAMILIES[self.family](self.blocks, sum(map(ord, self.name)), list(self.batches))

    def knobs(self) -> dict[str, Any]:
        """Return what the stand-in is told."""
        return {"faults" if isinstance(self.fault, Fault) else "wrong": [self.fault]}

    def planted(self, drawn: Drawn) -> frozenset[str]:
        """Return the nodes of the fault; there is at least one place for it."""
        region = self.fault.region if isinstance(self.fault, Fault) else self.fault
        assert region is not None
        graph = read_model(onnx.load_from_string(drawn.proto.SerializeToString())).graph
        places = region.places(graph, set(), 3)
        assert places, self.name
        return frozenset(str(node.name) for place in places for node in place)


def _at(scope: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{scope}/{name}" for name in names)


def _operators() -> list[Trial]:
    conv, norm = _at("layer4", "conv2/Conv"), _at("blocks.5/norm2", "Div")
    return [
        Trial("a convolution by 1.1", "convolutions", 8, Wrong(nodes=conv, do="scale", size=0.1)),
        Trial("every Softmax, rolled", "transformer", 3, Wrong(ops=("Softmax",), do="roll")),
        Trial("every GRU, garbage", "recurrent", 5, Wrong(ops=("GRU",))),
        Trial("a GRU, 30 dB", "recurrent", 12, Wrong(nodes=_at("gru6", "GRU"), size=DB30)),
        Trial("a Div, 30 dB", "transformer", 10, Wrong(nodes=norm, size=DB30)),
        Trial("every ReduceMean, garbage", "branches", 16, Wrong(ops=("ReduceMean",), size=0.5)),
    ]


def _fusions() -> list[Trial]:
    conv = _at("layer9", "conv1/Conv", "bn1/BatchNormalization", "Relu")
    norm = _at("blocks.2/norm1", "Sub", "Mul", "ReduceMean_1", "Add")
    gelu = _at("blocks.7/mlp/act", "Erf", "Add", "Mul")

    def fusion(nodes: tuple[str, ...], **how: Any) -> Wrong:
        return Wrong(nodes=nodes, unless="between", **how)

    return [
        Trial("Conv, norm and Relu fused", "convolutions", 20, fusion(conv, size=0.3)),
        Trial("part of a norm fused, 30 dB", "transformer", 6, fusion(norm, size=DB30)),
        Trial(
            *("Conv and Tanh fused, scaled", "branches", 22),
            fusion(_at("mixed12/b3", "Conv", "Tanh"), do="scale", size=0.2),
        ),
        Trial("part of a GELU fused, rolled", "transformer", 9, fusion(gelu, do="roll")),
        Trial(
            *("Transpose and GRU fused", "recurrent", 9),
            fusion(_at("gru4", "Transpose", "GRU"), size=DB20),
            (2, 2),
            "10.16.1",
        ),
        Trial(
            "Add and Relu fused, zero",
            "convolutions",
            55,
            fusion(_at("layer30", "Add", "Relu_1"), do="zero"),
        ),
    ]


def _unmarked() -> list[Trial]:
    def unmarked(nodes: tuple[str, ...], **how: Any) -> Wrong:
        return Wrong(nodes=nodes, unless="touched", **how)

    attention = _at("blocks.6/attn", "MatMul", "Mul", "Softmax", "MatMul_1")
    convs = _at("layer6", "conv2/Conv", "bn2/BatchNormalization", "Add")
    return [
        Trial("three nodes, unmarked", "convolutions", 13, unmarked(convs, size=0.5)),
        Trial(
            *("a Softmax, unmarked", "transformer", 4),
            unmarked(_at("blocks.1/attn", "Softmax"), do="roll"),
        ),
        Trial(
            *("Concat and Conv, unmarked", "branches", 8),
            unmarked(_at("mixed3", "Concat", "Conv"), do="roll"),
        ),
        Trial(
            *("a GRU, unmarked, 30 dB", "recurrent", 16),
            unmarked(_at("gru10", "GRU"), size=DB30),
        ),
        Trial("an attention, unmarked", "transformer", 8, unmarked(attention, size=0.5)),
    ]


def _others() -> list[Trial]:
    batch = Wrong(nodes=_at("layer3", "bn1/BatchNormalization"), size=DB20, batch=4)
    first = Wrong(
        nodes=_at("blocks.2/mlp", "fc1/MatMul", "fc1/Add"), unless="between", do="roll", batch=1
    )
    nan = Wrong(nodes=_at("layer21", "bn2/BatchNormalization"), do="nan")
    fused = Wrong(nodes=_at("blocks.4/norm2", "Sqrt", "Div"), unless="between", do="nan")
    crash = Region(nodes=_at("blocks.1/attn", "Softmax", "MatMul_1"))
    pattern = Region(ops=("Concat", "Conv", "BatchNormalization"))
    marks = Region(nodes=_at("gru3", "Transpose", "GRU"), unless="between")
    return [
        Trial("a norm at batch 4", "convolutions", 10, batch, (1, 2, 4)),
        Trial("MatMul and Add at batch 1", "transformer", 4, first, (1, 2, 4)),
        Trial("NaN of a norm", "convolutions", 34, nan),
        Trial("NaN of a fusion", "transformer", 7, fused),
        Trial("a crash at a pair", "transformer", 3, Fault("build", "segv", region=crash)),
        Trial("a refusal at a chain", "branches", 4, Fault("build", "foreign", region=pattern)),
        Trial("out of memory, unmarked", "recurrent", 7, Fault("build", "memory", region=marks)),
    ]


def trials() -> list[Trial]:
    """Return all faults."""
    return [*_operators(), *_fusions(), *_unmarked(), *_others()]


def low_trials() -> list[Trial]:
    """Return faults of kernels that are right in FP32 and wrong where all of them is low."""
    conv = _at("layer2", "conv1/Conv", "bn1/BatchNormalization")
    gelu = _at("blocks.1/mlp/act", "Erf", "Add", "Mul")
    return [
        Trial(
            "Conv and norm, low", "convolutions", 7, Wrong(nodes=conv, size=0.5, low=True), (2,) * 8
        ),
        Trial(
            *("part of a GELU, low, unmarked", "transformer", 2),
            Wrong(nodes=gelu, unless="touched", do="roll", low=True),
            (2,) * 8,
        ),
        Trial(
            *("a GRU, low", "recurrent", 5),
            Wrong(nodes=_at("gru2", "GRU"), size=0.3, low=True),
            (2,) * 8,
        ),
    ]
