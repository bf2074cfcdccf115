"""Random graphs at scales that break FP16, repaired: the same function, even on unseen data.

    python bench/run.py repair_graphs
    python bench/repair_graphs.py [--graphs N] [--seed S] [--out DIR]

Each hundred graphs have a seed, which is printed; it draws the same ones again. `fix` sees some
samples; the repaired model is compared with the original in FP64 on others: ten times as large, a
hundredth, other masks. Hypothesis shrinks what fails, and the result is saved in DIR.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import onnx
from hypothesis import HealthCheck, given, seed, settings

from bench.figures import Figure, equal, reported
from bench.runs import Workbench
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.loop import fix
from halfwise.fixing.repair.proof import LIMIT
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests.fp64 import in_fp64
from tests.repair_graphs import Drawn, repair_graphs

GRAPHS, PIECE = 1000, 100

Arrays = Mapping[str, np.ndarray]

TRUSTED = 1e-2
"""Error of the original from which FP64 shows nothing: it computes another function there."""
LUCK = 2.0
"""Two orders of the same sums may err so much more on a sample that no proof has seen."""


class Unsound(AssertionError):
    """A repaired model is another function."""


@dataclass
class Tally:
    """Results of the graphs.

    Attributes:
        examined: Graphs that could be fixed.
        refused: Others.
        passed: Graphs whose verdict passed.
        repaired: Graphs that were repaired.
        rules: How often each rule was made.
        compared: Samples on which the repaired and the original model were held to FP64.
        worst: Largest error of a repaired model over what is accepted.
    """

    examined: int = 0
    refused: int = 0
    passed: int = 0
    repaired: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    worst: float = 0.0


def examine(drawn: Drawn, tally: Tally) -> None:
    """Fix a graph, and hold its repaired model to the function.

    Raises:
        Unsound: it is another one.
    """
    data = {name: np.stack([s[name] for s in drawn.seen]) for name in drawn.seen[0]}
    try:
        request = understand(data, {})
        case = load_case(drawn.proto, request.data, request.criterion)
        fixed = fix(case, request.settings, Silent())
    except (CaseError, RunFailed):
        tally.refused += 1
        return
    tally.examined += 1
    tally.passed += fixed.verdict.passed
    rules = [repair.rule for repair in fixed.plan.repairs]
    if not rules:
        return
    tally.repaired += 1
    tally.rules.update(rules)
    sides = Session(case.network.model), Session(fixed.space.variant.case.network.model)
    for place, sample in enumerate((*drawn.seen, *drawn.unseen)):
        right = None
        with suppress(CaseError, RunFailed):
            right = in_fp64(case.network.model, sample)
        if right is None:
            continue
        before, after = (error(right, session.run(sample)) for session in sides)
        if not before <= TRUSTED:
            continue
        tally.compared += 1
        allowed = max(LIMIT, LUCK * before)
        tally.worst = max(tally.worst, after / allowed)
        if not after <= allowed:
            seen = "seen" if place < len(drawn.seen) else "not seen"
            told = f"{', '.join(rules)}: off by {after:.3g} on a sample {seen}"
            raise Unsound(f"{told}, and the original by {before:.3g}")


def error(right: Arrays, found: Arrays) -> float:
    """Return the largest error over the largest finite value of its output.

    inf where one is finite and the other is not; 0 of outputs that are not float.
    """
    worst = 0.0
    for name, array in right.items():
        if array.dtype.kind != "f":
            continue
        other = found[name].astype(np.float64)
        finite = np.isfinite(array)
        if not np.array_equal(finite, np.isfinite(other)):
            return float("inf")
        scale = np.abs(array[finite]).max(initial=0.0)
        off = np.abs(array[finite] - other[finite]).max(initial=0.0)
        worst = max(worst, float(off / scale) if scale else float(off))
    return worst


def explore(graphs: int, start: int, folder: Path, tally: Tally) -> Iterator[tuple[int, str]]:
    """Yield for each hundred graphs their seed, and what failed, empty where nothing did.

    Args:
        graphs: How many to draw in all.
        start: Seed of the first hundred; the others follow.
        folder: Takes `repair-<seed>.onnx`, if something fails: the smallest found.
        tally: Counts.
    """
    for piece, left in enumerate(range(graphs, 0, -PIECE), start):
        yield piece, _piece(min(left, PIECE), piece, folder, tally)


def _piece(graphs: int, start: int, folder: Path, tally: Tally) -> str:
    last: list[Drawn] = []

    @seed(start)
    @settings(
        max_examples=graphs,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(repair_graphs())
    def run(drawn: Drawn) -> None:
        last[:] = [drawn]
        examine(drawn, tally)

    try:
        run()
    except Exception as error:  # noqa: BLE001 - every error is a finding
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(last[0].proto, folder / f"repair-{start}.onnx")
        return f"{type(error).__name__}: {error} ({folder}/repair-{start}.onnx)"
    return ""


def figures(graphs: int, start: int, folder: Path) -> list[Figure]:
    """Return what `graphs` drawn graphs come to; see `explore`."""
    tally, failed = Tally(), []
    for piece, why in explore(graphs, start, folder, tally):
        told = f"seed {piece}: {why or 'everything holds'}; so far {tally}"
        print(told, file=sys.stderr, flush=True)
        failed += [f"--seed {piece}: {why}"] if why else []
    rules = ", ".join(f"{count} {rule}" for rule, count in tally.rules.most_common())
    note = f"{tally.repaired} repaired ({rules}), {tally.passed} passed, {tally.refused} refused"
    what = "drawn graphs: largest error of a repaired one over what is accepted"
    return [
        equal("drawn graphs: what fails", "; ".join(failed), "", f"--seed {start}"),
        reported("drawn graphs", tally.examined, note),
        reported(what, tally.worst, f"{tally.compared} samples, three of five never seen"),
    ]


def measure(_bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures of a night's random graphs, from a fresh seed."""
    return figures(GRAPHS, secrets.randbits(32), Path("runs")), None


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=int, default=GRAPHS)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--out", type=Path, default=Path("runs"), help="takes what fails")
    given = parser.parse_args()
    found = figures(given.graphs, given.seed, given.out)
    print(*(f"{f.what}: {f.measured} ({f.note})" for f in found), sep="\n")
    return 0 if all(f.reached for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())
