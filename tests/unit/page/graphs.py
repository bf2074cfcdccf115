"""Small graphs, written as lines: name, operator, what it reads; each node gives one tensor."""

from collections.abc import Iterable, Mapping, Sequence

from halfwise.records import Graph, NodeName, TensorName

Line = tuple[str, str, Sequence[str]]


def sketched(
    lines: Iterable[Line],
    *,
    constants: Mapping[str, str] | None = None,
    bodies: Mapping[int, int] | None = None,
    added: Sequence[int] = (),
) -> Graph:
    """Return a graph: a node's scope is what stands before the last slash of its name.

    Tensors are called as the nodes that make them; what nobody makes and is no constant is given.

    Args:
        lines: The nodes.
        constants: Shapes of constants by name.
        bodies: As in `Graph`.
        added: Likewise.
    """
    lines, constants = list(lines), constants or {}
    made = [name for name, _, _ in lines]
    tensors = list(dict.fromkeys([*(t for _, _, reads in lines for t in reads), *made]))
    places = {tensor: i for i, tensor in enumerate(tensors)}
    scopes = [name.rpartition("/")[0] for name in made]
    shapes = [constants.get(tensor, "1×8") for tensor in tensors]
    read = {places[t] for _, _, reads in lines for t in reads}
    return Graph(
        nodes=tuple(map(NodeName, made)),
        ops=tuple(op for _, op, _ in lines),
        scopes=tuple(scopes),
        reads=tuple(tuple(places[t] for t in reads) for _, _, reads in lines),
        gives=tuple((places[name],) for name in made),
        bodies=bodies or {},
        added=tuple(added),
        sources=(None,) * len(lines),
        tensors=tuple(map(TensorName, tensors)),
        types=("FLOAT",) * len(tensors),
        shapes=tuple(shapes),
        constants=tuple(places[t] for t in constants if t in places),
        inputs=tuple(i for t, i in places.items() if t not in made and t not in constants),
        outputs=tuple(i for t, i in places.items() if t in made and i not in read),
    )


def block(prefix: str, reads: str, *, act: str = "Relu") -> list[Line]:
    """Return an MLP with a residual: four nodes."""
    return [
        (f"{prefix}up", "MatMul", [reads, f"{prefix}w1"]),
        (f"{prefix}act", act, [f"{prefix}up"]),
        (f"{prefix}down", "MatMul", [f"{prefix}act", f"{prefix}w2"]),
        (f"{prefix}sum", "Add", [reads, f"{prefix}down"]),
    ]


def stacked(
    prefixes: Sequence[str], *, odd: int | None = None
) -> tuple[list[Line], dict[str, str]]:
    """Return blocks one after the other, and the shapes of their weights; one may be `odd`."""
    lines: list[Line] = [("stem", "Conv", ["x"])]
    for i, prefix in enumerate(prefixes):
        lines += block(prefix, lines[-1][0], act="Gelu" if i == odd else "Relu")
    weights = {f"{p}{w}": shape for p in prefixes for w, shape in (("w1", "8×32"), ("w2", "32×8"))}
    return [*lines, ("head", "MatMul", [lines[-1][0], "x"])], weights
