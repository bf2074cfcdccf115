"""Stored evidence: the graph, the code that its nodes come from, and pictures of samples."""

import base64
import re
import struct
import zlib
from collections.abc import Container, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Case
from halfwise.graph.bodies import bodies_of
from halfwise.graph.model import node_name, tensor_name
from halfwise.metrics.kinds import SMOOTH
from halfwise.metrics.targets import SIDE
from halfwise.records import Graph, NodeName, Preview, Run, RunEvidence, Source, Verdict
from halfwise.wording import dimensions

_STACK = "pkg.torch.onnx.stack_trace"
_NAMES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_LONGEST = 1 << 16
"""Most characters of an entry that are parsed: a stack of a hundred calls has 15,000."""
_QUOTED = re.compile(r"""'([^'\n]*)'|"([^"\n]*)\"""")
_FRAME = re.compile(
    r'^[ \t]*File "(?P<file>[^\n"]*)", line (?P<line>[0-9]{1,9}), in (?P<function>[^\n]*)'
    r'(?:\n[ \t]*(?!File ")(?P<text>[^\n]*))?',
    re.MULTILINE,
)
_FRAMEWORK = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


class Sources:
    """Sources of nodes, each place stored once."""

    def __init__(self) -> None:
        self._found: dict[Source, int] = {}

    @property
    def found(self) -> tuple[Source, ...]:
        """All sources so far."""
        return tuple(self._found)

    def of(self, node: ir.Node) -> int | None:
        """Return the index of a node's source; None if its metadata has none."""
        names, classes = _modules(node)
        text = node.metadata_props.get(_STACK, "")[:_LONGEST]
        calls = [call.groupdict("") for call in _FRAME.finditer(text)]
        if not names and not calls:
            return None
        outside = [call for call in calls if not _FRAMEWORK.search(call["file"])]
        source = Source.model_validate(
            {"module": names[-1] if names else "", "kind": classes[-1] if classes else ""}
            | (outside[-1] if outside else {})
        )
        return self._found.setdefault(source, len(self._found))


def scope_of(node: ir.Node) -> str | None:
    """Return the modules around a node, outermost first, joined by "/"; "" for the model itself.

    For other exporters, it is the part of the node's name before the last "/", because TorchScript,
    Keras and TensorFlow name nodes by scope: "/stem/stem.0/Conv". None if unknown.
    """
    names, _ = _modules(node)
    name = node.name or ""
    if not names and "/" not in name:
        return None
    parts, around = list[str](), ""
    for module in names or name.strip("/").split("/")[:-1]:
        if module:
            parts.append(module.removeprefix(f"{around}.") if around else module)
            around = module
    return "/".join(parts)


def _modules(node: ir.Node) -> tuple[list[str], list[str]]:
    """Return names and classes of the modules around a node, outermost first; empty if unknown."""
    entries = (node.metadata_props.get(key, "")[:_LONGEST] for key in (_NAMES, _CLASSES))
    names, classes = ([a or b for a, b in _QUOTED.findall(text)][:-1] for text in entries)
    return names, classes


Places = dict[ir.Value, int]


def graph_of(model: ir.Model, originals: Container[NodeName], sources: Sources) -> Graph:
    """Return the structure of a model in normal form, including nodes in bodies.

    Args:
        model: The model.
        originals: The nodes of the user's model.
        sources: Collects the sources of the nodes.
    """
    nodes = list(model.graph.all_nodes())
    names = tuple(map(node_name, nodes))
    values: Places = {}
    inputs = _placed(model.graph.inputs, values)
    reads = tuple(_placed(node.inputs, values) for node in nodes)
    gives = tuple(_placed(node.outputs, values) for node in nodes)
    outputs = _placed(model.graph.outputs, values)
    scopes, shapes = _interned(_scopes(nodes)), _interned(map(_shape, values))
    return Graph(
        nodes=names,
        ops=tuple(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in nodes),
        scopes=scopes[0],
        scope_names=scopes[1],
        reads=reads,
        gives=gives,
        bodies=_owners(nodes),
        added=tuple(i for i, name in enumerate(names) if name not in originals),
        sources=tuple(map(sources.of, nodes)),
        tensors=tuple(map(tensor_name, values)),
        types=tuple("" if v.dtype is None else v.dtype.name for v in values),
        shapes=shapes[0],
        shape_names=shapes[1],
        constants=tuple(i for v, i in values.items() if v.is_initializer()),
        inputs=inputs,
        outputs=outputs,
    )


def _placed(values: Sequence[ir.Value | None], places: Places) -> tuple[int, ...]:
    """Return the indices of values, appending new ones; omitted values have none."""
    return tuple(places.setdefault(v, len(places)) for v in values if v is not None and v.name)


def _interned(texts: Iterator[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return each text's index among the distinct texts, and these."""
    places: dict[str, int] = {}
    return tuple(places.setdefault(text, len(places)) for text in texts), tuple(places)


def _shape(value: ir.Value) -> str:
    sizes = None if value.shape is None else [_size(size) for size in value.shape]
    return dimensions(sizes)


def _size(size: int | ir.SymbolicDim) -> int | str | None:
    return size if isinstance(size, int) else size.value


def _owners(nodes: Sequence[ir.Node]) -> dict[int, int]:
    """Return, for nodes in bodies, the index of the node with the body."""
    owner = {body: i for i, node in enumerate(nodes) for _, body in bodies_of(node)}
    return {i: owner[n.graph] for i, n in enumerate(nodes) if n.graph in owner}


def _scopes(nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Yield the scope of each node; one without takes that of its first input's producer."""
    scopes: dict[ir.Node, str] = {}
    for node in nodes:
        scope = scope_of(node)
        if scope is None:
            makers = (v.producer() for v in node.inputs if v is not None)
            scope = next((scopes[m] for m in makers if m in scopes), "")
        scopes[node] = scope
        yield scope


WORST, TYPICAL = 4, 2
"""How many samples are shown of each kind. Our choice."""
_WIDEST = 128
"""Pixels of a preview's longer side. Our choice."""

Why = Literal["worst", "typical"]


def previews(case: Case, verdict: Verdict) -> tuple[Preview, ...]:
    """Return previews of the worst judged samples and of some with median error, worst first.

    An input is shown if all its values on these samples are finite and neighbours are similar,
    with 1 or 3 channels (first or last) and at least 8 pixels per side. For a batch, the first
    entry is shown.

    Args:
        case: Supplies the samples.
        verdict: The judged samples, and their errors.
    """
    chosen = _chosen(verdict)
    samples = case.heldout + case.calibration
    places = {name: i for i, name in reversed(list(enumerate(samples.ids)))}
    shown = [(i, why, samples[places[i]]) for i, why in chosen if i in places]
    names = shown[0][2] if shown else ()
    images = [name for name in names if _are_images([s[name] for _, _, s in shown])]
    return tuple(
        Preview(sample=sample, input=name, shape=s[name].shape, why=why, png=_image(s[name]))
        for sample, why, s in shown
        for name in images
    )


def _chosen(verdict: Verdict) -> list[tuple[str, Why]]:
    """Return the samples to show; none if the record has no errors per sample."""
    ids, errors = verdict.samples, verdict.excesses
    if len(errors) != len(ids):
        return []
    order = sorted(range(len(ids)), key=lambda i: -errors[i])
    middle = max(WORST, (len(order) - TYPICAL) // 2)
    worst: list[tuple[str, Why]] = [(ids[i], "worst") for i in order[:WORST]]
    return worst + [(ids[i], "typical") for i in order[middle : middle + TYPICAL]]


def _are_images(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether an input looks like an image on all samples, and not like a constant."""
    if not any(array.size and array.min() != array.max() for array in arrays):
        return False
    pixels = [_pixels(array) for array in arrays]
    return all(p is not None and _is_smooth(p, 0) and _is_smooth(p, 1) for p in pixels)


def _pixels(array: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return f64[height, width, 1 or 3]; None if shape or type are not an image's."""
    one = array[0] if array.ndim == 4 and len(array) else array
    if one.ndim != 3 or array.dtype.kind not in "fu":
        return None
    first = one.shape[0] in (1, 3) and (array.ndim == 4 or one.shape[0] == 3)
    if first:
        one = np.moveaxis(one, 0, -1)
    elif one.shape[-1] not in (1, 3):
        return None
    return one.astype(np.float64) if min(one.shape[:2]) >= SIDE else None


def _is_smooth(values: NDArray[np.float64], axis: int) -> bool:
    """Return whether all values are finite, and neighbours along an axis correlate or are equal."""
    if not np.isfinite(values).all():
        return False
    centred = np.moveaxis(values - values.mean((0, 1)), axis, 0)
    power = float(np.square(centred).mean())
    return power == 0 or float((centred[1:] * centred[:-1]).mean()) >= SMOOTH * power


def _image(array: NDArray[Any]) -> str:
    """Return a reduced image, from its smallest value in black to its largest in white."""
    pixels = _pixels(array)
    assert pixels is not None
    step = -(-max(pixels.shape[:2]) // _WIDEST)
    height, width = (side // step * step for side in pixels.shape[:2])
    blocks = pixels[:height, :width].reshape(height // step, step, width // step, step, -1)
    small = blocks.mean((1, 3))
    least, most = float(small.min()), float(small.max())
    scaled = (small - least) / (most - least or 1.0) * 255
    return base64.b64encode(png(np.round(scaled).astype(np.uint8))).decode()


_COLOUR_TYPES = {1: 0, 3: 2}
"""Colour types by number of channels: grey, and red, green and blue (table 11.1)."""
_PAETH = 4
"""A filter that stores each byte's difference from its nearest neighbour (9.4)."""


def png(image: NDArray[np.uint8]) -> bytes:
    """Return an image as a PNG file.

    Args:
        image: u8[height, width, 1 or 3], of one pixel or more.
    """
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.full((height, 1 + width * channels), _PAETH, np.uint8)
    rows[:, 1:] = _filtered(image).reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _filtered(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return each byte's difference from its left, upper or upper left neighbour, modulo 256."""
    around = np.pad(image.astype(np.int16), ((1, 0), (1, 0), (0, 0)))
    left, upper, corner = around[1:, :-1], around[:-1, 1:], around[:-1, :-1]
    estimate = left + upper - corner
    a, b, c = (np.abs(estimate - one) for one in (left, upper, corner))
    nearest = np.where((a <= b) & (a <= c), left, np.where(b <= c, upper, corner))
    return (image - nearest).astype(np.uint8)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


MOST_NODES = 50_000
"""Ten times a large model; no browser would open a drawing of more."""
MOST_BYTES = 32 * 2**20
"""Largest evidence.json: two and a half times what `MOST_NODES` usual nodes take."""


def evidence_of(case: Case, run: Run, mixed: ir.Model | None = None) -> RunEvidence:
    """Return what illustrates a run beyond its numbers, at most `MOST_BYTES` of JSON.

    If it is more, for example because names have thousands of characters, the graph is left out
    first, then the previews.

    Args:
        case: The case; its network is the user's model.
        run: The run.
        mixed: The model that the run delivers, whose graph is stored; None for the case's model.
    """
    sources, shown = Sources(), mixed or case.network.model
    originals = {node_name(node): node for node in case.network.model.graph.all_nodes()}
    names = {NodeName(node.name or "") for node in shown.graph.all_nodes()}
    graph = graph_of(shown, originals, sources) if len(names) <= MOST_NODES else None
    gone = {name: sources.of(node) for name, node in originals.items() if name not in names}
    whole = RunEvidence(
        graph=graph,
        replaced={name: index for name, index in gone.items() if index is not None},
        sources=sources.found,
        previews=previews(case, run.verdict) if case.previews else (),
    )
    less = (whole, RunEvidence(graph=None, previews=whole.previews))
    small = (one for one in less if len(one.model_dump_json().encode()) <= MOST_BYTES)
    return next(small, RunEvidence(graph=None))
