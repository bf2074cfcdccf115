"""A comparison by hand."""

from math import inf
from typing import Any

from halfwise.records import Comparison, NodeComparison, NodeName, TensorName, replace


def node(name: str, status: Any = "good", **changed: Any) -> NodeComparison:
    values: dict[str, Any] = {"node": name, "op": "Mul", "tensor": f"{name}_out", "status": status}
    if status in ("good", "born", "amplified", "inherited"):
        values |= {"error": 1e-7, "inherited": 1e-8, "born": 0.0, "worst_sample": "x.npz[0]"}
    if status == "born":
        values |= {"error": inf, "born": inf, "side": "b", "region": (NodeName(name),)}
    return NodeComparison(**values | changed)


REGION = (NodeName("a"), NodeName("b"))
AMPLIFIED = node("m", "amplified", error=0.007, inherited=0.001, factor=7.0)


def comparison(**changed: Any) -> Comparison:
    values: dict[str, Any] = {
        "a": "ONNX Runtime, FP32",
        "b": "engine, FP32, TF32 off",
        "samples": ("x.npz[0]", "x.npz[1]"),
        "tolerance": 1e-5,
        "nodes": (
            node("a"),
            node("b", "born"),
            node("c", "inherited", error=0.5, inherited=inf),
            node("d", "born", born=0.3, error=0.4),
            node("e", "fused"),
            node("f", "constant"),
            node("g", "skipped"),
        ),
        "first": (NodeName("b"),),
        "path": (NodeName("b"), NodeName("c")),
        "outputs": {TensorName("c_out"): 0.5, TensorName("other"): 1e-7},
        "notes": ("Marking tensors did not change the final outputs.",),
    }
    return Comparison(**values | changed)


def comparisons() -> tuple[Comparison, ...]:
    """Return one of each kind."""
    nodes, first = comparison().nodes, (NodeName("m"), NodeName("a"))
    grown = replace(AMPLIFIED, factor=None, inherited=0.0, region=(NodeName("m"), NodeName("n")))
    return (
        comparison(),
        comparison(nodes=(node("b", "born", region=REGION),), first=REGION, path=()),
        comparison(nodes=(node("a"),), first=(), path=(), outputs={}, excess=0.5),
        comparison(nodes=(*nodes, AMPLIFIED), first=(), path=()),
        comparison(nodes=(AMPLIFIED, *nodes), amplified=first),
        comparison(nodes=(grown, *nodes), amplified=first[:1], first=(), path=()),
    )
