"""Where nodes come from: what `torch.onnx` writes into a node's metadata, else the node's name.

torch.onnx.export(dynamo=True) gives each node the names and classes of the enclosing modules, from
the model inwards and with the operator last, as text of Python lists, and the Python stack of its
trace. Names of modules are full paths from the model: "blocks.0" is around "blocks.0.attn".
(torch/onnx/_internal/exporter/_core.py; keys and forms as PyTorch 2.13 writes them.)
"""

import re

import onnx_ir as ir

from halfwise.records import Frame, Source

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
    """Sources of nodes, with each place and each call stored once."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._found: dict[Source, int] = {}

    @property
    def frames(self) -> tuple[Frame, ...]:
        """All calls so far."""
        return tuple(self._frames)

    @property
    def found(self) -> tuple[Source, ...]:
        """All sources so far."""
        return tuple(self._found)

    def of(self, node: ir.Node) -> int | None:
        """Return the index of a node's source; None if its metadata has none."""
        names, classes = _modules(node)
        text = node.metadata_props.get(_STACK, "")[:_LONGEST]
        frames = [
            Frame(
                file=found["file"],
                line=int(found["line"]),
                function=found["function"],
                text=found["text"] or "",
            )
            for found in _FRAME.finditer(text)
        ]
        if not names and not frames:
            return None
        indices = tuple(self._frames.setdefault(f, len(self._frames)) for f in frames)
        outside = [i for i, f in zip(indices, frames, strict=True) if not _FRAMEWORK.search(f.file)]
        source = Source(
            module=names[-1] if names else "",
            kind=classes[-1] if classes else "",
            frames=indices,
            own=outside[-1] if outside else None,
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
