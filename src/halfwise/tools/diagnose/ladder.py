"""Climb the ladder: one rung after another, up to the first that fails."""

from collections.abc import Callable, Sequence

from halfwise.records import Rung, RungName, Sign
from halfwise.tools.diagnose.export import exported, healthy
from halfwise.tools.diagnose.harness import harness
from halfwise.tools.diagnose.kernels import fp32_engine, low_engine
from halfwise.tools.diagnose.precision import precision
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.diagnose.tf32 import tf32

LADDER: tuple[tuple[RungName, Callable[[Subject], Rung]], ...] = (
    ("harness", harness),
    ("export", exported),
    ("model", healthy),
    ("fp32", fp32_engine),
    ("tf32", tf32),
    ("precision", precision),
    ("kernels", low_engine),
)
"""The cheap and frequent causes first; each rung takes for granted what the ones below showed."""


def climb(
    subject: Subject,
    ladder: Sequence[tuple[RungName, Callable[[Subject], Rung]]] = LADDER,
) -> tuple[Rung, ...]:
    """Return the rungs up to the first that fails, that one included.

    That TF32 matters is a prediction without an engine, so the next rung is looked at all the same.
    Where that shows values that leave the low format's range, TF32 is no more than suspected: what
    overflows does so on every device.
    """
    rungs: list[Rung] = []
    for name, look in ladder:
        subject.watcher.stage(name)
        rungs.append(look(subject))
        if rungs[-1].overflows:
            rungs = [_suspected(rung) if _is_prediction(rung) else rung for rung in rungs]
        if rungs[-1].passed is False and not _is_prediction(rungs[-1]):
            break
    return tuple(rungs)


def _is_prediction(rung: Rung) -> bool:
    return rung.name == "tf32" and rung.passed is False and rung.how == "emulated"


def _suspected(rung: Rung) -> Rung:
    cause = f"Suspected, in emulation: {rung.cause}"
    sign = Sign(severity="warning", text=cause)
    changed = {"passed": None, "cause": cause, "nodes": (), "evidence": (sign, *rung.evidence)}
    return rung.model_copy(update=changed)
