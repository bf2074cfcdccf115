"""What shows a made-up run beyond its numbers: its graph and source lines."""

from collections.abc import Collection, Iterator, Sequence

from halfwise.records import Graph, NodeName, RunEvidence, Source, TensorName, replace
from tests.browser.network import Made

CAST = "halfwise_cast"
CLASSES = {
    "norm1": "timm.layers.norm.LayerNorm",
    "norm2": "timm.layers.norm.LayerNorm",
    "attn": "timm.models.vision_transformer.Attention",
    "mlp": "timm.layers.mlp.Mlp",
}


def made_evidence(network: Sequence[Made], keep: Collection[str] = ()) -> RunEvidence:
    """Return the evidence on a run of it that keeps nodes: its graph is that of the mixed model."""
    return RunEvidence(
        graph=_graph(list(_mixed(network, set(keep))), set(keep)),
        sources=tuple(map(_source, network)),
    )


def _mixed(network: Sequence[Made], keep: set[str]) -> Iterator[Made]:
    """Yield the nodes, with Casts where a kept one reads what a low one gives, and behind it."""
    made = {node.gives: node for node in network}
    cast: dict[str, str] = {}
    for node in network:
        kept = node.name in keep
        reads = []
        for read in node.reads:
            if read in made and (made[read].name in keep) != kept:
                name = f"{made[read].name}/{CAST}"
                if read not in cast:
                    cast[read] = f"{name}_output_0"
                    yield Made(name, "Cast", (read,), cast[read], made[read].shape)
                reads.append(cast[read])
            else:
                reads.append(read)
        yield replace(node, reads=tuple(reads))


def _graph(network: Sequence[Made], keep: set[str]) -> Graph:
    given = {node.gives: node for node in network}
    read = dict.fromkeys(name for node in network for name in node.reads)
    outside = [name for name in read if name not in given]
    tensors = {name: place for place, name in enumerate([*outside, *given])}
    shapes = ["×".join(map(str, given[name].shape)) if name in given else "" for name in tensors]
    scopes = [node.name[1:].rpartition("/")[0] for node in network]
    casts = [place for place, node in enumerate(network) if node.op == "Cast"]
    user = iter(range(len(network)))
    return Graph(
        nodes=tuple(NodeName(node.name) for node in network),
        ops=tuple(node.op for node in network),
        scopes=tuple(scopes),
        reads=tuple(tuple(tensors[name] for name in node.reads) for node in network),
        gives=tuple((tensors[node.gives],) for node in network),
        added=tuple(casts),
        sources=tuple(None if node.op == "Cast" else next(user) for node in network),
        tensors=tuple(map(TensorName, tensors)),
        types=tuple(_type(given[n], keep) if n in given else "FLOAT" for n in tensors),
        shapes=tuple(shapes),
        constants=tuple(tensors[name] for name in outside if name != "image"),
        inputs=(tensors["image"],),
        outputs=(tensors[network[-1].gives],),
    )


def _type(node: Made, keep: set[str]) -> str:
    """Return the type of what a node gives; a Cast gives what its maker does not."""
    wide = node.name in keep
    if node.op == "Cast":
        wide = node.name.removesuffix(f"/{CAST}") not in keep
    return "FLOAT" if wide else "FLOAT16"


def _source(node: Made) -> Source:
    """Return the line of the author's code that a node comes from."""
    scope, _, name = node.name[1:].rpartition("/")
    part = [*scope.split("/"), scope][1]
    return Source(
        module=scope.replace("/", "."),
        kind=CLASSES.get(part, "torch.nn.modules.container.Sequential"),
        file=f"/home/me/net/{part}.py",
        line=60 + sum(map(ord, f"{part}{name}")) % 300,
        function="forward",
        text=f"y = self.{name.lower().replace('/', '.')}(x)",
    )
