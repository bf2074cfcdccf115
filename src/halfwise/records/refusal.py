"""Plans that an engine builder refused, and what was tried in their place."""

from typing import Literal

from halfwise.records.record import NodeName, Record

RefusalKind = Literal["no-kernel", "compiler", "crash", "timeout", "unknown"]
"""How a builder refuses: it finds no kernel for a block, its compiler for fused blocks or one of
its checks fails, its process dies, it takes too long, or it names no reason that is known."""
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
"""What is tried in place of a plan that was refused. With what the plan keeps: only what computes
is constrained in the region, nothing that moves data; only what is next to something low; another
optimization level; TF32 is allowed; GRU and LSTM are written out;
normalisations that were written out are one node each. With another set of kept nodes:
the whole region, or a half of it, is kept; a wider island is; only what guards are certain about is
kept there; nothing is."""


class Move(Record):
    """What a plan is tried with because the builder refused another one.

    Attributes:
        kind: What is done.
        refused: Number of the build that was refused.
        ends: First and last layer of the region, as the builder calls them; empty where it named
            none, and the model is taken for one.
        island: "island": what is made whole, in a few words; "" otherwise.
        level: The optimization level that is asked for; None for that of the run.
        border: Whether what is kept there is constrained at its border alone.
    """

    kind: MoveKind
    refused: int
    ends: tuple[str, ...] = ()
    island: str = ""
    level: int | None = None
    border: bool = False


class Refusal(Record):
    """A build that was refused, and the plans that were not built because of it.

    Attributes:
        kind: How.
        build: Its number.
        ends: First and last layer of the region, as the builder calls them; empty where it named
            none.
        nodes: Nodes of the region, in graph order: as an engine of the model shows it, else from
            its first to its last; empty where the builder named none.
        shown: Whether an engine shows them. Only then a plan counts as one that would be refused
            likewise where it differs elsewhere.
        avoided: How many plans were not built since they are the same there.
        said: What the builder said of it, one line of its log; empty where no error is in that, and
            in records before this field.
    """

    kind: RefusalKind
    build: int
    ends: tuple[str, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    shown: bool = False
    avoided: int = 0
    said: str = ""
