"""Read the names of ONNX nodes out of what TensorRT calls its layers.

Fused layers are `a + b`, `a || b` and `PWN(a, b)`; what the compiler Myelin takes as a whole is
`{ForeignNode[first...last]}`. Layers that the parser adds are `(Unnamed Layer* 7) [Shuffle]` and
`ONNXTRT_…`; weights are `a + b.weight`.
"""

import re

_FOREIGN = re.compile(r"ForeignNode\[(?P<inside>.*?)(?:\](?:\}|$|\.?\))|$)")
_SEPARATOR = re.compile(r" \+ | \|\| |, ")
_WRAPPED = re.compile(r"^(?:PWN|PWN_\w+|copy)\(|^Reformatting CopyNode for .*? to ")
_ADDED = re.compile(r"^\(Unnamed[ _]Layer|^ONNXTRT_|^\[trainStation|^_?constant$")
_SUFFIX = re.compile(
    r"\.(?:weight|bias|kernel)$|\[[A-Z]\w*\]$| _ \(Unnamed.*$| *\(Myelin\[\w+\]\)$|\.?\)?\.?$"
)


def foreign_region(text: str) -> tuple[str, str] | None:
    """Return the first and the last layer of the first `ForeignNode` in `text`; None without one.

    They are names of network layers: of a node, of a constant, or `(Unnamed Layer* 7) [Shuffle]`.
    A block of one layer gives it twice.
    """
    found = _FOREIGN.search(text)
    if found is None:
        return None
    first, _, last = found["inside"].partition("...")
    parts = [_bare(part) for part in _SEPARATOR.split(first)]
    ends = [_bare(part) for part in _SEPARATOR.split(last or first)]
    return parts[0], ends[-1]


def names_in(expression: str) -> tuple[str, ...]:
    """Return the names in a layer's name or a list of such, without what TensorRT adds.

    Of a `ForeignNode` these are the ends only: the log does not tell what is between.
    """
    found = _FOREIGN.search(expression)
    if found is not None:
        ends = found["inside"].replace("...", ", ")
        return names_in(ends) if "ForeignNode[" not in ends else ()
    names = (_bare(part) for part in _SEPARATOR.split(expression))
    return tuple(dict.fromkeys(name for name in names if name and not _ADDED.match(name)))


def _bare(part: str) -> str:
    name = part.strip()
    while wrapped := _WRAPPED.match(name):
        name = name[wrapped.end() :]
    while name.endswith(")") and name.count(")") > name.count("("):
        name = name[:-1]
    if _ADDED.match(name):
        return name
    while (shorter := _SUFFIX.sub("", name).rstrip()) != name:
        name = shorter
    return name
