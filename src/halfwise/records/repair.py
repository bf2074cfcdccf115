"""Repairs: rewritings that leave the function as it is, so that the low format is enough."""

from collections.abc import Mapping
from typing import Literal

from halfwise.records.record import Failure, NodeName, Record, TensorName

RepairRule = Literal["scale", "fold", "stable", "one-node", "mask", "phase", "epsilon", "saturate"]
"""The rules, each a file of `fixing.repair.rules`.

"scale": tensors are stored times a power of two; "fold": chains of affine operators become one;
"stable": norms, softmax, log-sum-exp, softplus and the like in forms that stay in range;
"one-node": what is written out becomes the operator whose inside is FP32; "mask": masks that
survive the Add behind them; "phase": positions and angles that are constant, computed beforehand.
Only approximate, so only where allowed: "epsilon" is raised, "saturate" bounds by what data showed.
"""


Allowed = Literal["approximate", "bf16", "tf32"]
"""What is done only where it is asked for.

"approximate": repairs that rest on no identity; "bf16": BF16 for kept nodes that need no more;
"tf32": TF32 for kept products, where it is enough for all of them.
"""
APPROXIMATE: frozenset[RepairRule] = frozenset(("epsilon", "saturate"))
"""Rules that rest on no identity."""


class Proof(Record):
    """How far a repaired model is from the function, and how far the original is.

    Attributes:
        samples: Samples that both ran on, by where they are from: "calibration", "heldout" and
            "widened" (see `fixing.repair.proof`).
        original: Largest error of an output of the original in FP32 against FP64, over the largest
            magnitude of that output; None where FP64 was not needed, since both differ by less than
            is accepted, or could not be computed.
        repaired: That of the repaired model; how far it is from the original in FP32 where FP64 was
            not computed on that sample, or not at all.
        equal: Whether all outputs of both are equal bit for bit.
        broken: Elements of outputs that are NaN or infinite and finite in the original, or NaN and
            infinite there.
        mended: On given samples, those that are NaN or infinite in the original, and something else
            in the repaired model: no plan gives what the original does.
    """

    samples: dict[str, int]
    original: float | None
    repaired: float
    equal: bool
    broken: int = 0
    mended: int = 0


class Repair(Record):
    """A repair at one place: what its rule needs to make it again, and what it is worth.

    Attributes:
        rule: The rule that makes it.
        nodes: The nodes that it changes or removes, as they are called before, in graph order.
        exponents: For "scale": tensor → e, where it is stored times 2^e; only those with e ≠ 0.
        numbers: Other parameters of the rule, by name.
        identity: The formula that it rests on; "" before it was made.
        guards: Kinds of guard and nodes that it answers, such as "overflow at /Add_3".
        before: Error of the low model without it, over what the search allows; None where it was
            not measured.
        after: That with it.
        proof: That the function is the same; None before it was proven.
        advice: A line for the training or export code that does the same; "" for none.
    """

    rule: RepairRule
    nodes: tuple[NodeName, ...]
    exponents: Mapping[TensorName, int] = {}
    numbers: Mapping[str, float] = {}
    identity: str = ""
    guards: tuple[str, ...] = ()
    before: float | None = None
    after: float | None = None
    proof: Proof | None = None
    advice: str = ""


class Remade(Record):
    """What comes of making the repairs again that a candidate's metadata names, on the original.

    Attributes:
        repairs: They, in order.
        proof: That those that are exact leave the function as it is; None where they could not be
            made, and where all are approximate.
        failures: What speaks against the candidate: "unmade", "other-graph", "unproven".
        differs: Where it names none: the first node or output in which it differs from the original
            beside types and Casts; "" for none.
    """

    repairs: tuple[Repair, ...]
    proof: Proof | None = None
    failures: tuple[Failure, ...] = ()
    differs: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.failures
