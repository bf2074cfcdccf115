"""Repairs: rewritings that preserve the function and make the low format sufficient."""

from collections.abc import Mapping
from typing import Literal

from halfwise.records.record import Failure, GuardKind, NodeName, Record, TensorName

RepairRule = Literal["scale", "fold", "stable", "one-node", "mask", "phase"]
"""The rules (`fixing.repair.making`).

"scale": store tensors times a power of two; "fold": merge chains of affine operators; "stable":
norms, softmax, log-sum-exp, softplus and similar in forms that stay in range; "one-node": replace a
decomposed operator by the one that computes in FP32 inside; "mask": masks that survive the Add
after them; "phase": precompute constant positions and angles.
"""


Allowed = Literal["bf16", "tf32"]
"""What is done only on request.

"bf16": BF16 for kept nodes that need no more; "tf32": TF32 for kept matrix products, if it is
enough for all of them.
"""


class Proof(Record):
    """Distance of a repaired model, and of the original, from the function.

    Attributes:
        samples: Samples that both ran on, by origin: "calibration", "heldout" and "widened" (see
            `fixing.repair.proof`).
        original: Largest error of an output of the original in FP32 against FP64, relative to the
            largest magnitude of that output; None if FP64 was not needed, as both differ by less
            than is accepted, or could not be computed.
        repaired: The same for the repaired model; its difference from the original in FP32 if FP64
            was not computed on that sample, or not at all.
        equal: Whether all outputs of both are bitwise equal.
        broken: Output elements that are NaN or infinite but finite in the original, or NaN where
            that is infinite.
        mended: On given samples, elements that are NaN or infinite in the original and something
            else in the repaired model: no plan reproduces the original there.
    """

    samples: dict[str, int]
    original: float | None
    repaired: float
    equal: bool
    broken: int = 0
    mended: int = 0


class Place(Record):
    """A suspected cause at a node: what names a guard across models.

    Attributes:
        kind: The guard's kind.
        node: Its node.
    """

    kind: GuardKind
    node: NodeName


class Repair(Record):
    """A repair at one place: what its rule needs to repeat it, and its effect.

    Attributes:
        rule: The rule behind it.
        nodes: Nodes that it changes or removes, by their old names, in graph order.
        exponents: For "scale": tensor → e, if stored times 2^e; only those with e ≠ 0.
        numbers: Other parameters of the rule, by name.
        identity: The identity behind it; "" before it was made.
        guards: The guards that it resolves.
        before: Error of the low model without it, relative to what the search allows; None if not
            measured.
        after: Error with it.
        proof: Proof that the function is the same; None until proven.
        room: For "scale": how many times as large as on the search samples its tensors may become
            until the first one overflows; None if not measured.
        advice: An equivalent line for the training or export code; "" for none.
    """

    rule: RepairRule
    nodes: tuple[NodeName, ...]
    exponents: Mapping[TensorName, int] = {}
    numbers: Mapping[str, float] = {}
    identity: str = ""
    guards: tuple[Place, ...] = ()
    before: float | None = None
    after: float | None = None
    proof: Proof | None = None
    room: float | None = None
    advice: str = ""


class Remade(Record):
    """Result of repeating, on the original, the repairs named in a candidate's metadata.

    Attributes:
        repairs: The repairs, in order.
        proof: Proof that they preserve the function; None if they could not be made.
        failures: Reasons against the candidate: "unmade", "other-graph", "unproven".
        differs: If it names no repairs: the first node or output that differs from the original
            other than by types and Casts; "" for none.
    """

    repairs: tuple[Repair, ...]
    proof: Proof | None = None
    failures: tuple[Failure, ...] = ()
    differs: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts it."""
        return not self.failures
