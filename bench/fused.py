"""Files of ONNX Runtime's transformer optimiser, and networks to the form of its genai builder's.

The first are eight architectures with random weights, which Optimum exports (`exports/fused.py`);
the others are small random ones with the operators that only the builder writes. Measured: which
share of the products is low in the plan, and whether the plan passes.

The environment with Optimum takes 6 GB and the network; it is kept as those of `bench/peers`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, at_least
from bench.peers.environments import environment
from bench.runs import FINISHED, ROOT, Workbench
from halfwise.graph.loading import load_network

HERE = Path(__file__).resolve().parent
LOW = 0.9
SAMPLES, WIDTH, HEADS, WORDS, TOKENS = 12, 64, 4, 80, 12
HEAD = WIDTH // HEADS
F32, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
PRODUCTS = (
    *("Attention", "Conv", "FusedMatMul", "Gemm", "GroupQueryAttention"),
    *("MatMul", "MultiHeadAttention"),
)
"""Operators that multiply matrices; those of attention that have no weights count alike."""

Arrays = dict[str, NDArray[Any]]


class Sketch:
    """Builds a network; each method returns the name of what it computes."""

    def __init__(self) -> None:
        """Start an empty network with random weights."""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: Arrays = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.data: Arrays = {}
        self.rng = np.random.default_rng(0)

    def take(self, name: str, array: NDArray[Any], shape: tuple[int | str, ...]) -> str:
        """Add an input; `array` has a sample per row."""
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.data[name] = array
        return name

    def give(self, name: str, value: str, kind: int = F32) -> None:
        """Add an output."""
        self.op("Identity", value, outputs=name)
        self.outputs.append(helper.make_tensor_value_info(name, kind, None))

    def fused(self, op: str, *read: str, outputs: str = "", **attributes: Any) -> str:
        """Add an operator of ONNX Runtime's own domain."""
        return self.op(op, *read, outputs=outputs, domain="com.microsoft", **attributes)

    def op(
        self, op: str, *read: str, outputs: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """Add a node; `outputs` are its names, by default one of its own."""
        made = outputs.split(" ") if outputs else [f"v{len(self.nodes)}"]
        make: Callable[..., onnx.NodeProto] = helper.make_node
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(make(op, list(read), made, name, domain=domain, **attributes))
        return made[0]

    def constant(self, array: NDArray[Any] | float | list[int]) -> str:
        """Add a constant; lists are int64."""
        name, array = f"c{len(self.constants)}", np.asarray(array)
        self.constants[name] = array.astype(np.float32) if array.dtype == float else array
        return name

    def weight(self, *shape: int) -> str:
        """Add weights that keep the scale of what they multiply."""
        return self.constant(self.rng.standard_normal(shape) / np.sqrt(shape[0]))

    def linear(self, x: str, into: int = WIDTH, out: int = WIDTH) -> str:
        """Multiply by weights."""
        return self.op("MatMul", x, self.weight(into, out))

    def norm(self, x: str) -> str:
        """Normalise with mean."""
        scale, bias = self.constant(np.ones(WIDTH)), self.constant(np.zeros(WIDTH))
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def rms(self, x: str) -> str:
        """Normalise without."""
        scale = self.constant(np.ones(WIDTH))
        return self.op("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-6)

    def skip(self, x: str, y: str, op: str = "SkipLayerNormalization") -> tuple[str, str]:
        """Add and normalise; return the norm and the sum."""
        total, scale = f"sum{len(self.nodes)}", self.constant(np.ones(WIDTH))
        bias = [] if "Simplified" in op else [self.constant(np.zeros(WIDTH))]
        made = f"skip{len(self.nodes)}"
        self.fused(op, x, y, scale, *bias, outputs=f"{made}   {total}", epsilon=1e-5)
        return made, total

    def attended(self, q: str, k: str, v: str, *more: str, **attributes: Any) -> str:
        """Attend without weights."""
        return self.fused("MultiHeadAttention", q, k, v, *more, num_heads=HEADS, **attributes)

    def grouped(self, x: str, layer: int, *, rotary: bool = True) -> str:
        """Attend with a cache, as genai's builder writes it."""
        past, size = (SAMPLES, 1, HEADS, 0, HEAD), (1, HEADS, "p", HEAD)
        names = [
            self.take(f"past_{layer}_{k}", np.zeros(past, np.float32), size)
            for k in ("key", "value")
        ]
        q, k, v = (self.linear(x) for _ in range(3))
        angles = np.outer(np.arange(32), 100.0 ** -(np.arange(HEAD // 2) / (HEAD // 2)))
        tables = [self.constant(np.cos(angles)), self.constant(np.sin(angles))]
        last, whole = np.array([TOKENS - 1], np.int32), np.array(TOKENS, np.int32)
        lengths = [self.constant(last), self.constant(whole)]
        made = [f"present_{layer}_{k}" for k in ("key", "value")]
        y = f"attention_{layer}"
        self.fused(
            "GroupQueryAttention",
            *(q, k, v, *names, *lengths, *tables),
            outputs=" ".join([y, *made]),
            num_heads=HEADS,
            kv_num_heads=HEADS,
            do_rotary=int(rotary),
        )
        self.outputs += [helper.make_tensor_value_info(n, F32, None) for n in made]
        return self.linear(y)

    def mlp(self, x: str, act: str) -> str:
        """Widen, bend, narrow."""
        h = self.linear(x, WIDTH, 4 * WIDTH)
        if act == "BiasGelu":
            h = self.fused("BiasGelu", h, self.constant(np.zeros(4 * WIDTH)))
        elif act == "gated":
            gate = self.op("Sigmoid", h)
            h = self.op("Mul", self.op("Mul", h, gate), self.linear(x, WIDTH, 4 * WIDTH))
        elif act == "Relu":
            h = self.op("Relu", h)
        else:
            h = self.fused(act, h)
        return self.linear(h, 4 * WIDTH, WIDTH)

    def words(self) -> str:
        """Look up token embeddings."""
        ids = self.rng.integers(0, WORDS, (SAMPLES, 1, TOKENS))
        table = self.constant(self.rng.standard_normal((WORDS, WIDTH)))
        return self.op("Gather", table, self.take("ids", ids, (1, "t")))

    def proto(self) -> onnx.ModelProto:
        """Return the network."""
        tensors = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, tensors)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def llama() -> Sketch:
    """GroupQueryAttention with a cache, SkipSimplifiedLayerNormalization, gated."""
    s = Sketch()
    total = s.words()
    x = s.rms(total)
    for layer in range(2):
        x, total = s.skip(s.grouped(x, layer), total, "SkipSimplifiedLayerNormalization")
        x, total = s.skip(s.mlp(x, "gated"), total, "SkipSimplifiedLayerNormalization")
    s.give("logits", s.linear(x, WIDTH, WORDS))
    return s


def t5() -> Sketch:
    """MultiHeadAttention with a bias of relative positions, FusedMatMul."""
    s = Sketch()
    total = s.words()
    x = s.rms(total)
    bias = s.constant(s.rng.standard_normal((1, HEADS, TOKENS, TOKENS)))
    for _ in range(2):
        q, k, v = (s.linear(x) for _ in range(3))
        y = s.linear(s.attended(q, k, v, "", "", bias, scale=1.0))
        x, total = s.skip(y, total, "SkipSimplifiedLayerNormalization")
        x, total = s.skip(s.mlp(x, "Relu"), total, "SkipSimplifiedLayerNormalization")
    s.give("logits", s.fused("FusedMatMul", x, s.weight(WORDS, WIDTH), transB=1, alpha=0.1))
    return s


def whisper() -> Sketch:
    """Decoder over frames: causal and cross MultiHeadAttention, BiasGelu."""
    s = Sketch()
    frames = s.rng.standard_normal((SAMPLES, 1, 20, WIDTH)).cumsum(2) / 4
    sound = s.norm(s.take("frames", frames.astype(np.float32), (1, 20, WIDTH)))
    total = s.words()
    x = s.norm(total)
    for _ in range(2):
        q, k, v = (s.linear(x) for _ in range(3))
        x, total = s.skip(s.linear(s.attended(q, k, v, unidirectional=1)), total)
        x, total = s.skip(
            s.linear(s.attended(s.linear(x), s.linear(sound), s.linear(sound))), total
        )
        x, total = s.skip(s.mlp(x, "BiasGelu"), total)
    s.give("logits", s.linear(x, WIDTH, WORDS))
    return s


def phi() -> Sketch:
    """Attention and MLP side by side, GroupQueryAttention, FastGelu."""
    s = Sketch()
    total = s.words()
    for layer in range(2):
        x = s.norm(total)
        both = s.op("Add", s.grouped(x, layer), s.mlp(x, "FastGelu"))
        total = s.op("Add", total, both)
    s.give("logits", s.linear(s.norm(total), WIDTH, WORDS))
    return s


NETWORKS: dict[str, Callable[[], Sketch]] = {
    "Llama to the builder's form": llama,
    "T5 to the builder's form": t5,
    "Whisper to the builder's form": whisper,
    "Phi to the builder's form": phi,
}


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return how many plans pass, and the smallest low share of the products."""
    place = environment("optimum", HERE / "requirements-optimum.txt")
    if place.missing:
        return [], f"Optimum: {place.missing}"
    script = str(HERE / "exports" / "fused.py")
    subprocess.run([place.python, script], cwd=bench.folder, check=True, capture_output=True)
    for name, network in NETWORKS.items():
        write(network(), bench.folder / name)
    rows = [judged(file) for file in sorted(bench.folder.glob("*.onnx"))]
    bench.details["fused"] = rows
    shares = ", ".join(f"{row['name']} {row['low']:.0%}" for row in rows)
    return [
        at_least("plans that pass", sum(row["code"] == 0 for row in rows), len(rows)),
        at_least("low share of a network's products", min(r["low"] for r in rows), LOW, shares),
    ], None


def write(sketch: Sketch, stem: Path) -> None:
    """Write a network, and its samples into a folder beside it."""
    onnx.save(sketch.proto(), f"{stem}.onnx")
    stem.mkdir()
    for i in range(SAMPLES):
        np.savez(stem / f"{i:02}.npz", **{key: array[i] for key, array in sketch.data.items()})


def judged(file: Path) -> dict[str, Any]:
    """Return the verdict on a file, and the share of its products that is low."""
    stem = file.with_suffix("")
    words = ["fix", file, "--inputs", stem, "--allow", "random", "-o", stem / "run"]
    command = [sys.executable, "-m", "halfwise", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode not in FINISHED:
        raise RuntimeError(f"{stem.name}: {done.stderr}")
    model, written = onnx.load(file), load_network(stem / "run" / "model.onnx")
    types = {node.name: node.outputs[0].dtype for node in written.all_nodes()}
    products = [node.name for node in model.graph.node if node.op_type in PRODUCTS]
    low = sum(types[product] == ir.DataType.FLOAT16 for product in products)
    return {
        "name": stem.name,
        "code": done.returncode,
        "products": len(products),
        "low": low / len(products),
        "fused": sorted({node.op_type for node in model.graph.node if node.domain}),
    }
