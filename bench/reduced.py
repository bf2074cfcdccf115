"""`halfwise reduce` on ten failures planted in networks of 200 to 2,000 nodes.

Verdicts (overflow, squares beyond the range and below it, cancellation), what ONNX Runtime refuses
or does not know, and commands of a user: builds that refuse, a crash, other outputs than another
program's.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, at_least, at_most, reported
from bench.runs import ROOT, Workbench
from halfwise.records import replace

NODES, CHECKS = 5, 60
WIDTH = 8
F32 = TensorProto.FLOAT

Constants = dict[str, "np.typing.NDArray[np.generic]"]
Step = tuple[str, str, str, dict[str, object]]


@dataclass(frozen=True)
class Planted:
    """A failure.

    Attributes:
        nodes: Operator, inputs (the first "" is what the network computed), output, attributes.
        constants: What they read besides.
        fails: The check; None for a command that fails where a model has one of `ops`.
        length: Nodes around it.
        ops: What the part has to keep.
        domain: Of its operators.
        every: Whether all nodes of the network have that domain.
        ends: How a command of a user fails.
        place: The share of the network's nodes that come before, in (0, 1].
    """

    nodes: Sequence[Step]
    constants: Constants
    ops: tuple[str, ...]
    length: int
    fails: str | None = None
    domain: str = ""
    every: bool = False
    ends: str = "sys.exit(1)"
    place: float = 0.5


def _f(*values: float) -> np.typing.NDArray[np.float32]:
    return np.array(values, np.float32)


_LAST: dict[str, object] = {"axes": [-1], "keepdims": 1}
_SQUARE: Step = ("Mul", "s_large s_large", "s_square", {})
FAILURES = {
    "overflow": Planted(
        [
            ("Mul", " s_up", "s_large", {}),
            ("Mul", "s_large s_up", "s_larger", {}),
            ("Div", "s_larger s_down", "s_y", {}),
        ],
        {"s_up": _f(1000), "s_down": _f(1e6)},
        ("Mul",),
        length=200,
        fails="verdict",
    ),
    "squares of a norm": Planted(
        [
            ("Mul", " s_up", "s_large", {}),
            _SQUARE,
            ("ReduceMean", "s_square", "s_mean", _LAST),
            ("Sqrt", "s_mean", "s_root", {}),
            ("Div", "s_large s_root", "s_y", {}),
        ],
        {"s_up": _f(900)},
        ("Mul",),
        length=1000,
        fails="verdict",
    ),
    "squares that vanish": Planted(
        [
            ("Mul", " s_down", "s_large", {}),
            _SQUARE,
            ("Sqrt", "s_square", "s_root", {}),
            ("Div", "s_large s_root", "s_y", {}),
        ],
        {"s_down": _f(1e-5)},
        ("Mul",),
        length=400,
        fails="verdict",
    ),
    "cancellation": Planted(
        [("Add", " s_far", "s_moved", {}), ("Sub", "s_moved s_far", "s_y", {})],
        {"s_far": _f(3000)},
        ("Sub",),
        length=800,
        fails="verdict",
    ),
    "an index out of range": Planted(
        [("Gather", " s_index", "s_one", {"axis": 2}), ("Add", " s_one", "s_y", {})],
        {"s_index": np.array([WIDTH])},
        ("Gather",),
        length=800,
        fails="run",
    ),
    "an operator that ONNX Runtime lacks": Planted(
        [("Swirl", "", "s_y", {})], {}, ("Swirl",), length=300, fails="run", domain="com.example"
    ),
    "a network that it lacks wholly": Planted(
        [("Swirl", "", "s_y", {})],
        {},
        (),
        length=200,
        fails="run",
        domain="com.example",
        every=True,
    ),
    "a build refused": Planted(
        [("Cast", "", "s_int", {"to": TensorProto.INT32}), ("Swirl", "s_int", "s_y", {})],
        {},
        ("Swirl",),
        length=1500,
        domain="com.example",
        every=True,
    ),
    "a crash": Planted(
        [("Softsign", "", "s_soft", {}), ("Neg", "s_soft", "s_y", {})],
        {},
        ("Softsign",),
        length=600,
        ends="os.abort()",
    ),
    "a pair of operators": Planted(
        [("Erf", "", "s_erf", {}), ("Softplus", "s_erf", "s_y", {})],
        {},
        ("Erf", "Softplus"),
        length=2000,
    ),
}


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return what remains of each failure, and after how many checks."""
    rows = [
        _reduced(name, replace(planted, place=(i + 1) / len(FAILURES)), bench.folder)
        for i, (name, planted) in enumerate(FAILURES.items())
    ]
    bench.details["reduced"] = rows
    sizes, checks = ([int(row[key]) for row in rows] for key in ("nodes", "checks"))
    note = "; ".join(f"{row['name']}: {row['nodes']} of {row['before']}" for row in rows)
    return [
        at_least("failures that remain in the part", sum(row["kept"] for row in rows), len(rows)),
        at_most("nodes of the largest part", max(sizes), NODES, note),
        at_most("checks of a reduction, at most", max(checks), CHECKS),
        reported("checks of a reduction, on average", sum(checks) / len(checks)),
    ], None


def _reduced(name: str, planted: Planted, folder: Path) -> dict[str, Any]:
    place = folder / name.replace(" ", "-")
    place.mkdir()
    onnx.save(network(planted), place / "m.onnx")
    x = np.random.default_rng(1).standard_normal((4, 1, 4, WIDTH)).cumsum(-1)
    np.savez(place / "x.npz", x=x.astype(np.float32))
    fails = planted.fails or _command(planted, place)
    words = ["reduce", place / "m.onnx", "--inputs", place / "x.npz", "--fails", fails]
    command = [sys.executable, "-m", "halfwise", *map(str, words)]
    done = subprocess.run(
        [*command, "-o", str(place / "small.onnx"), "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr}")
    record = json.loads(done.stdout)
    kept = set(planted.ops) <= set(record["ops"]) and record["before"] > planted.length
    return {
        "name": name,
        "before": record["before"],
        "nodes": len(record["nodes"]),
        "ops": record["ops"],
        "checks": record["checks"],
        "finished": record["finished"],
        "kept": kept,
    }


def _command(planted: Planted, place: Path) -> str:
    script = (
        "import os, sys, onnx\n"
        "ops = {n.op_type for n in onnx.load(sys.argv[1]).graph.node}\n"
        f"if ops >= set({planted.ops!r}): {planted.ends}\n"
    )
    (place / "check.py").write_text(script, encoding="utf-8")
    return shlex.join([sys.executable, str(place / "check.py"), "{model}"])


def network(planted: Planted) -> onnx.ModelProto:
    """Return residual products in a row, with a failure at its place among them."""
    rng = np.random.default_rng(0)
    make: Callable[..., onnx.NodeProto] = helper.make_node
    nodes: list[onnx.NodeProto] = []
    constants, value, start = {**planted.constants, "quarter": _f(0.25)}, "x", "x"
    for i in range(planted.length):
        if i == int((planted.length - 1) * planted.place) // 4 * 4:  # before a product
            for op, read, made, attributes in planted.nodes:
                inputs = [name or value for name in read.split(" ")]
                domain = planted.domain
                nodes.append(make(op, inputs, [made], made, domain=domain, **attributes))
            value = "s_y"
        domain = planted.domain if planted.every else ""
        if i % 4 == 0:
            weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
            constants[f"w{i}"], start = weight * np.float32(0.1), value
        inputs = [[value, f"w{i}"], [value], [value, "quarter"], [value, start]][i % 4]
        op, value = ("MatMul", "Tanh", "Mul", "Add")[i % 4], f"v{i}"
        nodes.append(make(op, inputs, [value], f"n{i}", domain=domain))
    ends = [helper.make_tensor_value_info(n, F32, ["n", 4, WIDTH]) for n in ("x", value)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 17)]
    if planted.domain:
        opsets.append(helper.make_opsetid(planted.domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
