"""What an ill model is, and the register of all of them."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
import onnx
from numpy.typing import NDArray

from halfwise.records import replace
from tests.unit.graph.sketch import f32

COUNT = 8
"""Samples of each model; every fourth is held out."""

Factory = Callable[[], "Ill"]
_P = ParamSpec("_P")


@dataclass(frozen=True)
class Ill:
    """A model, inputs that bring its illness out, and what has to be found.

    Attributes:
        proto: The model.
        inputs: Input name → [samples, *shape].
        kept: Compute nodes that must stay in FP32, none of which can be spared.
        guards: The kinds of guards that name the causes of the kept nodes, all of them; None
            where none does.
        size: Number of nodes to keep where several sets are minimal; `kept` is then left empty.
        options: What `halfwise fix` has to be told, such as `--accumulate fp16`.
        name: Name of the factory.
        family: The class of failures it belongs to.
        story: What goes wrong, in one sentence.
        issues: Public threads where users met it, as `owner/repository#number`.
    """

    proto: onnx.ModelProto
    inputs: Mapping[str, NDArray[Any]]
    kept: AbstractSet[str] = frozenset()
    guards: AbstractSet[str | None] = frozenset()
    size: int | None = None
    options: tuple[str, ...] = ()
    name: str = ""
    family: str = ""
    story: str = ""
    issues: tuple[str, ...] = ()

    @property
    def smallest(self) -> int:
        """Number of nodes in a minimal set; 0 where FP16 does no harm."""
        return len(self.kept) if self.size is None else self.size

    def sample(self, index: int) -> dict[str, NDArray[Any]]:
        """Return one sample."""
        return {name: np.asarray(array[index]) for name, array in self.inputs.items()}


FAMILIES = (
    "Overflow on the way",
    "Normalisation written out",
    "Attention and masks",
    "Exponentials",
    "Underflow and eps",
    "Cancellation",
    "Positions, angles and coordinates",
    "Near choices",
    "Recurrence",
    "Weights",
    "FP16 accumulation",
    "Error that accumulates",
    "Beyond the calibrated range",
    "Harmless",
)
"""Classes of failures, in the order in which they are listed."""

_registered: list[tuple[int, Factory]] = []


def illness(family: str, *issues: str) -> Callable[[Callable[_P, Ill]], Callable[_P, Ill]]:
    """Register a factory of ill models; its docstring's first line is the story."""

    def register(make: Callable[_P, Ill]) -> Callable[_P, Ill]:
        story = (make.__doc__ or "").partition("\n")[0]

        @wraps(make)
        def made(*args: _P.args, **kwargs: _P.kwargs) -> Ill:
            ill = make(*args, **kwargs)
            return replace(ill, name=make.__name__, family=family, story=story, issues=issues)

        _registered.append((FAMILIES.index(family), made))
        return made

    return register


def registered() -> tuple[Factory, ...]:
    """Return every factory whose file is imported, by family and then as defined."""
    return tuple(make for _, make in sorted(_registered, key=lambda entry: entry[0]))


def signals(*shape: int, seed: int, peak: float = 1.0, count: int = COUNT) -> NDArray[np.float32]:
    """Return f32[count, *shape]: random walks along the last axis, each with max |x| = `peak`."""
    steps = np.random.default_rng(seed).normal(size=(count, *shape))
    walks = np.cumsum(steps, axis=-1).reshape(count, -1)
    walks *= peak / np.abs(walks).max(axis=1, keepdims=True)
    return f32(walks.reshape(count, *shape))


def weights(*shape: int, seed: int, scale: float) -> NDArray[np.float32]:
    """Return f32[*shape]: |w| within a factor of 2 of `scale`, signs mixed."""
    generator = np.random.default_rng(seed)
    size = generator.uniform(0.75, 1.5, shape) * scale
    return f32(size * generator.choice([-1, 1], shape))
