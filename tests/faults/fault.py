"""What a model with a fault is, and the register of all of them."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import onnx

Make = Callable[[bool], onnx.ModelProto]


@dataclass(frozen=True)
class Fault:
    """A tiny model with one fault, and the same without it.

    Attributes:
        rule: Id of the rule that has to find it.
        name: Name of the function that makes it.
        make: Makes the model, with the fault where its argument is true.
        besides: Rules that find something in both.
        tensorrt: Version that is to parse it, "rtx" and its version, or "webgpu"; None for none.
        severity: How bad it is.
        node: The node that has to be named; None for the file as a whole.
    """

    rule: str
    name: str
    make: Make
    besides: AbstractSet[str]
    tensorrt: str | None
    severity: str
    node: str | None


_registered: list[Fault] = []


def fault(
    rule: str,
    severity: str,
    node: str | None,
    *,
    besides: tuple[str, ...] = (),
    tensorrt: str | None = None,
) -> Callable[[Make], Make]:
    """Register a function that makes a model with and without a fault."""

    def register(make: Make) -> Make:
        made = Fault(rule, make.__name__, make, frozenset(besides), tensorrt, severity, node)
        _registered.append(made)
        return make

    return register


def registered() -> tuple[Fault, ...]:
    """Return all faults whose file is imported, in order of definition."""
    return tuple(_registered)
