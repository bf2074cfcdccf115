"""Climb the ladder: one rung after another, up to the first that fails."""

from collections.abc import Callable, Sequence

from halfwise.pipeline.diagnosing.export import exported, healthy
from halfwise.pipeline.diagnosing.harness import harness
from halfwise.pipeline.diagnosing.kernels import fp32_engine, low_engine
from halfwise.pipeline.diagnosing.precision import precision
from halfwise.pipeline.diagnosing.subject import Subject
from halfwise.pipeline.diagnosing.tf32 import tf32
from halfwise.records import Rung, RungName

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
    """Return the rungs up to the first that fails, that one included."""
    rungs: list[Rung] = []
    for name, look in ladder:
        subject.watcher.stage(name)
        rungs.append(look(subject))
        if rungs[-1].passed is False:
            break
    return tuple(rungs)
