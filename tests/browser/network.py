"""A made-up transformer of any number of nodes, as torch.onnx names them; nothing of it is run."""

from collections.abc import Iterator
from dataclasses import dataclass

WIDTH = 768
"""Features of a token; the model has 197 tokens of 12 heads."""
STREAM = (1, 197, WIDTH)
SCORES = (1, 12, 197, 197)
HIDDEN = (1, 197, 4 * WIDTH)
ROW = (1, 197, 1)
_NORM = (
    ("ReduceMean", "<", ROW),
    ("Sub", "< ReduceMean", STREAM),
    ("Pow", "Sub", STREAM),
    ("ReduceMean_1", "Pow", ROW),
    ("Add", "ReduceMean_1 eps", ROW),
    ("Sqrt", "Add", ROW),
    ("Div", "Sub Sqrt", STREAM),
    ("Mul", "Div weight", STREAM),
    ("Add_1", "Mul bias", STREAM),
)
_ATTENTION = (
    ("qkv/MatMul", "< qkv.weight", (1, 197, 3 * WIDTH)),
    ("qkv/Add", "qkv/MatMul qkv.bias", (1, 197, 3 * WIDTH)),
    ("Reshape", "qkv/Add shape", (1, 197, 3, 12, 64)),
    ("Transpose", "Reshape", (3, 1, 12, 197, 64)),
    ("Gather", "Transpose q", (1, 12, 197, 64)),
    ("Gather_1", "Transpose k", (1, 12, 197, 64)),
    ("Gather_2", "Transpose v", (1, 12, 197, 64)),
    ("Mul", "Gather scale", (1, 12, 197, 64)),
    ("Transpose_1", "Gather_1", (1, 12, 64, 197)),
    ("MatMul", "Mul Transpose_1", SCORES),
    ("Softmax", "MatMul", SCORES),
    ("MatMul_1", "Softmax Gather_2", (1, 12, 197, 64)),
    ("Transpose_2", "MatMul_1", (1, 197, 12, 64)),
    ("Reshape_1", "Transpose_2 shape", STREAM),
    ("proj/MatMul", "Reshape_1 proj.weight", STREAM),
    ("proj/Add", "proj/MatMul proj.bias", STREAM),
)
_MLP = (
    ("fc1/MatMul", "< fc1.weight", HIDDEN),
    ("fc1/Add", "fc1/MatMul fc1.bias", HIDDEN),
    ("act/Div", "fc1/Add sqrt2", HIDDEN),
    ("act/Erf", "act/Div", HIDDEN),
    ("act/Add", "act/Erf one", HIDDEN),
    ("act/Mul", "fc1/Add act/Add", HIDDEN),
    ("act/Mul_1", "act/Mul half", HIDDEN),
    ("fc2/MatMul", "act/Mul_1 fc2.weight", STREAM),
    ("fc2/Add", "fc2/MatMul fc2.bias", STREAM),
)
"""Operators of a part, what each reads ("<": what the part is given; small names: constants), and
the shape that it makes."""
_PARTS = (("norm1", _NORM), ("attn", _ATTENTION), ("norm2", _NORM), ("mlp", _MLP))
MOVES = frozenset(("Reshape", "Transpose", "Gather"))
"""Operators that only move data."""


@dataclass(frozen=True)
class Made:
    """A node of it: what it reads are tensors and constants, and it gives one tensor."""

    name: str
    op: str
    reads: tuple[str, ...]
    gives: str
    shape: tuple[int, ...]

    @property
    def computes(self) -> bool:
        """Whether it does more than move data."""
        return self.op not in MOVES


def network(nodes: int) -> list[Made]:
    """Return as many nodes, in graph order: blocks of 45, then Softmax after Softmax."""
    made = [_node("/patch_embed/proj/Conv", ("image", "patch_embed.proj.weight"), STREAM)]
    block = 0
    while len(made) + 45 <= nodes:
        made += _block(f"/blocks.{block}", made[-1].gives)
        block += 1
    while len(made) < nodes:
        made.append(_node(f"/head/Softmax_{len(made)}", (made[-1].gives,), STREAM))
    return made


def _block(scope: str, given: str) -> Iterator[Made]:
    stream = given
    for number, (part, operators) in enumerate(_PARTS):
        here = f"{scope}/{part}"
        for name, reads, shape in operators:
            named = (_read(here, read, given) for read in reads.split())
            node = _node(f"{here}/{name}", tuple(named), shape)
            yield node
        given = node.gives
        if number % 2:
            sum_ = _node(f"{scope}/Add{'_1' * (number > 2)}", (stream, given), STREAM)
            yield sum_
            stream = given = sum_.gives


def _read(scope: str, name: str, given: str) -> str:
    if name == "<":
        return given
    if name[0].isupper() or "/" in name:
        return f"{scope}/{name}_output_0"
    return f"{scope[1:].replace('/', '.')}.{name}"


def _node(name: str, reads: tuple[str, ...], shape: tuple[int, ...]) -> Made:
    return Made(
        name, name.rsplit("/", 1)[1].split("_", maxsplit=1)[0], reads, f"{name}_output_0", shape
    )
