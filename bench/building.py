"""What TensorRT for RTX's parser and builder make of a model; needs no GPU."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.judges import RtxBuilder

_Case = TypeVar("_Case")
_Answer = TypeVar("_Answer")

SM = "SM89"
"""The oldest that has FP8 as well: in 2,024 node tests, answers differ from SM86's for FP8 only."""
MOST_VALUES = 64
"""Integer inputs up to this size may be shapes: the builder is told their values."""
SECONDS = 60
"""How long a build may take; almost all take a few hundredths of a second."""
_UNKNOWN = re.compile(
    r"Assertion failed: (creator\b|plugin != nullptr)|has no runners|no answer|the process ended"
    r"|not supported by a dedicated kernel|must have the same shape"
)
"""What it says of operators that the parser knows, but that only a GPU's plugins or kernels build,
of those whose sizes decide (Attention with few channels, or with other ones for its values), and
of builds that did not end. An operator that it does not know is reported as a missing plugin in
other words."""
_LACKING = re.compile(r"^(false|creator && .Plugin not found.*)$")
"""What the parser says of operators that it lacks."""
_NODE = re.compile(r"node_of_([\w./:-]+)")


class Verdict(NamedTuple):
    """Whether a model was built.

    Attributes:
        built: True or False; None if it did not end or only a GPU could tell.
        names: What the error names: nodes, tensors and operators.
        text: The error.
    """

    built: bool | None
    names: frozenset[str] = frozenset()
    text: str = ""

    @property
    def lacks(self) -> bool:
        """Whether the parser does not know the operator at all."""
        return _LACKING.match(self.text) is not None


class Place(NamedTuple):
    """A builder, and a folder for the files that it is asked about."""

    builder: RtxBuilder
    folder: Path


def verdict(place: Place, model: onnx.ModelProto, given: Mapping[str, NDArray[Any]]) -> Verdict:
    """Return what becomes of a model.

    Args:
        place: The builder and its folder.
        model: The model; its dynamic axes get the sizes of `given`.
        given: Values of its inputs, where known.
    """
    path = place.folder / "asked.onnx"
    path.write_bytes(model.SerializeToString())
    dynamic = {
        info.name
        for info in model.graph.input
        if not all(d.HasField("dim_value") for d in info.type.tensor_type.shape.dim)
    }
    profiles = {}
    for name, value in given.items():
        if isinstance(value, np.ndarray):
            whole = value.dtype.kind in "iub" and 0 < value.size <= MOST_VALUES
            told = value.astype(int).ravel() if whole and name not in dynamic else value.shape
            profiles[name] = (list(map(int, told)),) * 3
    build = place.builder.build(path, SM, profiles, seconds=SECONDS)
    text = " / ".join(error.text for error in build.errors)
    names = {n for e in build.errors for n in (e.node, e.operator) if n} | {*_NODE.findall(text)}
    for node in model.graph.node:
        if names & {node.name, *node.output}:
            names |= {node.name, node.op_type} - {""}
    if build.built:
        return Verdict(built=True)
    return Verdict(None if _UNKNOWN.search(text) else False, frozenset(names), text)


_own: Place


def in_processes(
    ask: Callable[[Place, _Case], _Answer], cases: Iterable[_Case]
) -> Iterator[_Answer]:
    """Yield what `ask` returns of each case, in the given order.

    As many processes as there are cores work, each with a builder of its own; the cases that take
    longest come first, best of all.

    Args:
        ask: A function of a module.
        cases: What it is called with; all of them are read at once.
    """
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_begin) as pool:
        yield from pool.map(partial(_asked, ask), cases)


def _begin() -> None:
    global _own  # noqa: PLW0603 - a process of a pool has no other place for it
    _own = Place(RtxBuilder(), Path(tempfile.mkdtemp()))
    atexit.register(shutil.rmtree, _own.folder, ignore_errors=True)


def _asked(ask: Callable[[Place, _Case], _Answer], case: _Case) -> _Answer:
    return ask(_own, case)
