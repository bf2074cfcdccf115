"""Finish a run folder: write the record, its evidence and its page."""

import re
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import onnx_ir as ir

from halfwise.case import Case
from halfwise.graph.bodies import bodies_of
from halfwise.graph.model import node_name, tensor_name
from halfwise.page.sections import Stored
from halfwise.progress import Watcher
from halfwise.records import Graph, NodeName, Observations, Run, RunEvidence, Source
from halfwise.store import EVIDENCE_FILE, PAGE_FILE, write_evidence, write_observations, write_run
from halfwise.wording import dimensions, sentence

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


def source_of(node: ir.Node) -> Source | None:
    """Return the source of a node; None if its metadata has none."""
    names, classes = _modules(node)
    text = node.metadata_props.get(_STACK, "")[:_LONGEST]
    calls = [call.groupdict("") for call in _FRAME.finditer(text)]
    if not names and not calls:
        return None
    outside = [call for call in calls if not _FRAMEWORK.search(call["file"])]
    module = {"module": "".join(names[-1:]), "kind": "".join(classes[-1:])}
    return msgspec.convert(module | (outside[-1] if outside else {}), Source, strict=False)


Sources = dict[Source, int]
"""Sources of nodes, each stored once, with its index."""


def _stored(node: ir.Node, sources: Sources) -> int | None:
    source = source_of(node)
    return None if source is None else sources.setdefault(source, len(sources))


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
    return Graph(
        nodes=names,
        ops=tuple(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in nodes),
        scopes=tuple(_scopes(nodes)),
        reads=reads,
        gives=gives,
        bodies=_owners(nodes),
        added=tuple(i for i, name in enumerate(names) if name not in originals),
        sources=tuple(_stored(node, sources) for node in nodes),
        tensors=tuple(map(tensor_name, values)),
        types=tuple("" if v.dtype is None else v.dtype.name for v in values),
        shapes=tuple(map(_shape, values)),
        constants=tuple(i for v, i in values.items() if v.is_initializer()),
        inputs=inputs,
        outputs=outputs,
    )


def _placed(values: Sequence[ir.Value | None], places: Places) -> tuple[int, ...]:
    """Return the indices of values, appending new ones; omitted values have none."""
    return tuple(places.setdefault(v, len(places)) for v in values if v is not None and v.name)


def _shape(value: ir.Value) -> str:
    if value.shape is None:
        return dimensions(None)
    return dimensions([n if isinstance(n, int) else n.value for n in value.shape])


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


MOST_NODES = 50_000
"""Ten times a large model; no browser would open a drawing of more."""


def evidence_of(case: Case, mixed: ir.Model | None = None) -> RunEvidence:
    """Return what illustrates a run beyond its numbers; no graph of more than `MOST_NODES` nodes.

    Args:
        case: The case; its network is the user's model.
        mixed: The model that the run delivers, whose graph is stored; None for the case's model.
    """
    sources, shown = Sources(), mixed or case.network.model
    originals = {node_name(node): node for node in case.network.model.graph.all_nodes()}
    names = {NodeName(node.name or "") for node in shown.graph.all_nodes()}
    graph = graph_of(shown, originals, sources) if len(names) <= MOST_NODES else None
    gone = {n: _stored(node, sources) for n, node in originals.items() if n not in names}
    replaced = {name: index for name, index in gone.items() if index is not None}
    return RunEvidence(graph=graph, replaced=replaced, sources=tuple(sources))


def finish(
    folder: Path,
    run: Run,
    case: Case,
    watcher: Watcher,
    *,
    mixed: ir.Model | None = None,
    observations: Observations | None = None,
) -> None:
    """Write the record of a run into its folder, with its evidence and page.

    A page never costs a run: if evidence or page cannot be made, the watcher is notified.

    Args:
        folder: The run folder, which exists.
        run: The run.
        case: Its case.
        watcher: Is notified of what could not be made.
        mixed: The model that the run delivers, if any.
        observations: Observations of the reference's tensors, if any.
    """
    write_run(folder, run)
    if observations is not None:
        write_observations(folder, observations)
    evidence = None
    with _optional(folder / EVIDENCE_FILE, watcher):
        evidence = evidence_of(case, mixed)
        write_evidence(folder, evidence)
    with _optional(folder / PAGE_FILE, watcher):
        from halfwise.page.document import write_stored  # noqa: PLC0415 (it loads jinja2)

        write_stored(Stored(run, observations, evidence), folder / PAGE_FILE)


@contextmanager
def _optional(file: Path, watcher: Watcher) -> Iterator[None]:
    """Remove the file that the block fails to make, and say why; Ctrl-C ends only the block."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the run is worth more
        file.unlink(missing_ok=True)
        why = sentence(f"{type(error).__name__}: {error}")
        watcher.note(f"the run is complete, but its {file.name} could not be made ({why})")
