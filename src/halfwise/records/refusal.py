"""Plans that an engine builder refused, and what was tried instead."""

from typing import Literal

from halfwise.records.record import NodeName, Record

RefusalKind = Literal["no-kernel", "compiler", "crash", "timeout", "unknown"]
"""How a builder refuses. "no-kernel": it finds no kernel for a block; "compiler": its compiler for
fused blocks, its kernel library or one of its checks fails; "crash": its process dies; "timeout":
it takes too long; "unknown": it gives no known reason."""
MoveKind = Literal[
    "computing",
    "border",
    "region",
    "level",
    "tf32",
    "written-out",
    "one-node",
    "half",
    "island",
    "certain",
    "none",
]
"""What is tried instead of a refused plan.

With the same kept nodes: "computing": in the region, constrain only nodes that compute, not those
that move data; "border": constrain only nodes next to something low; "level": use another
optimization level; "tf32": allow TF32; "written-out": write out GRU and LSTM; "one-node": make each
decomposed normalisation one node. With other kept nodes: "region": keep the whole region; "half":
keep half of it; "island": keep a wider island; "certain": keep only what guards are certain about;
"none": keep nothing there.
"""


class Move(Record):
    """What a plan is tried with because the builder refused another.

    Attributes:
        kind: What is changed.
        refused: Number of the refused build.
        ends: First and last layer of the region, as the builder names them; empty if it named none,
            and the whole model counts as the region.
        island: "island": what is made whole, in a few words; "" otherwise.
        level: The requested optimization level; None for that of the run.
        border: Whether what is kept there is constrained only at its border.
    """

    kind: MoveKind
    refused: int
    ends: tuple[str, ...] = ()
    island: str = ""
    level: int | None = None
    border: bool = False


class Refusal(Record):
    """A refused build, and the plans that were not built because of it.

    Attributes:
        kind: How it was refused.
        build: Its number.
        ends: First and last layer of the region, as the builder names them; empty if it named none.
        nodes: Nodes of the region in graph order, taken from an engine of the model if there is
            one, otherwise from the first to the last; empty if the builder named none.
        shown: Whether an engine shows them. Only then does a plan that differs elsewhere count as
            refused too.
        avoided: Number of plans not built because they are the same there.
        said: What the builder reported, one line of its log; empty if that contains no error, and
            in older records.
    """

    kind: RefusalKind
    build: int
    ends: tuple[str, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    shown: bool = False
    avoided: int = 0
    said: str = ""
