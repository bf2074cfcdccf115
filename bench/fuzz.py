"""Random graphs and plans: mixed models are valid, emulations agree, all-FP32 equals the original.

Both low formats are drawn. Models that pass in FP16 emulation must pass in ONNX's evaluator too.

    python bench/fuzz.py [--examples N] [--seed S] [--out DIR]

Prints the seed; the same seed draws the same graphs. Hypothesis shrinks what fails; the result is
printed and saved in DIR.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from bench.figures import Figure, at_most, equal, reported
from bench.runs import Workbench
from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError
from halfwise.formats import BF16, FP16
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import DATA_MOVEMENT, FIRST_BF16_OPSET, roles_of
from halfwise.judging.reference import check
from halfwise.metrics import Outputs
from halfwise.records import NodeName
from tests.graph_rules import EVERY_OPSET, rules_at
from tests.graphs import Drawn, graphs

EXAMPLES, SEED_VARIABLE = 2000, "HALFWISE_FUZZ_SEED"
TOLERANCE = 1e-6
"""Largest difference of the emulations over the largest finite output."""
FINE, LIMIT = 0.005, 0.05
"""Error of a mixed model in emulation up to which ONNX's evaluator is asked, and the error that
it may then find."""
SAME = 1e-5
"""Largest difference of ONNX Runtime and ONNX's evaluator on the FP32 model."""
ROUND_ONCE = DATA_MOVEMENT.union(
    ("Abs", "Add", "And", "ArgMax", "Clip", "Div", "Exp", "Floor", "Greater", "IsNaN", "LeakyRelu"),
    ("Less", "MatMul", "Max", "Min", "Mul", "Neg", "Not", "ReduceMax", "Relu", "Round", "Shape"),
    ("Sign", "Sqrt", "Sub", "Sum", "Tanh"),
)
"""Operators for which FP32 inside, as in the emulation, makes no difference."""
DRAWN = graphs(opsets=EVERY_OPSET, rules=rules_at)


class Unsound(AssertionError):
    """A property does not hold."""


@dataclass
class Tally:
    """Results of the examples.

    Attributes:
        examined: Graphs that ONNX and ONNX Runtime accept.
        refused: Other graphs.
        apart: The largest difference of the emulations, over the largest finite output.
        evaluated: FP16 models that pass in emulation, computed by ONNX's evaluator too.
        off: Their largest error there.
    """

    examined: int = 0
    refused: int = 0
    apart: float = 0.0
    evaluated: int = 0
    off: float = 0.0


def examine(drawn: Drawn, choose: st.DataObject, tally: Tally) -> None:
    """Check all properties on one graph and one plan, in FP16 or BF16.

    Raises:
        Unsound: one does not hold.
    """
    try:
        network = network_from_proto(drawn.proto)
        check(network)
        original = Session(network.model).run(drawn.sample)
    except CaseError:
        tally.refused += 1
        return
    tally.examined += 1
    formats = (FP16, BF16) if network.opset >= FIRST_BF16_OPSET else (FP16,)
    fmt = choose.draw(st.sampled_from(formats))
    roles = roles_of(network, low_type(fmt))
    free = [name for name, role in roles.items() if role.free]
    some = st.frozensets(st.sampled_from(free)) if free else st.just(frozenset())
    flipped: frozenset[NodeName] = frozenset(free) if choose.draw(st.booleans()) else frozenset()
    fp32 = choose.draw(some) ^ flipped
    mixed = rewrite(network, roles, fp32, fmt).model
    standard = all(n.domain in ("", "ai.onnx") for n in mixed.graph.all_nodes())
    onnx.checker.check_model(ir.serde.serialize_model(mixed), full_check=standard)
    switched = emulate_switched(network, roles, fmt)
    session = Session(switched.model)
    typed = Session(emulate_typed(mixed)).run(drawn.sample)
    feed = {**drawn.sample, SWITCH_INPUT: switched.switches.switch(fp32)}
    if fmt == FP16:
        _demand_like_evaluator(network, mixed, drawn.sample, original, typed, tally)
    distance = apart(session.run(feed), typed)
    tally.apart = max(tally.apart, distance)
    if not distance <= TOLERANCE:
        raise Unsound(f"the emulations differ by {distance:g} with {sorted(fp32)} in FP32")
    same = Session(rewrite(network, roles, frozenset(free), fmt).model).run(drawn.sample)
    feed[SWITCH_INPUT] = switched.switches.switch(frozenset(free))
    for what, found in (("rewriting", same), ("switched emulation", session.run(feed))):
        if any(found[n].tobytes() != original[n].tobytes() for n in original):
            raise Unsound(f"the all-FP32 {what} is not the original to the bit")


def _demand_like_evaluator(
    network: Network,
    mixed: ir.Model,
    sample: Mapping[str, np.ndarray],
    original: Outputs,
    typed: Outputs,
    tally: Tally,
) -> None:
    """If the mixed model passes in emulation, demand the same of ONNX's own FP16 arithmetic.

    ONNX's evaluator shares no code with the emulations. It is asked only if it computes the FP32
    model as ONNX Runtime does: it lacks operators, and has faults in others. Nor is it asked about
    operators with FP16 steps inside, such as squares that vanish: the emulation has FP32 there.
    """
    once = all(n.op_type in ROUND_ONCE for n in network.nodes())
    if not once or not apart(original, typed) <= FINE:
        return
    distance = 0.0
    with warnings.catch_warnings(action="ignore"), suppress(Exception):
        if not apart(original, _evaluated(network.model, sample)) <= SAME:
            return
        found = _evaluated(mixed, sample)
        tally.evaluated += 1
        distance = apart(original, found)
        tally.off = max(tally.off, distance)
    if not distance <= LIMIT:
        raise Unsound(f"the emulation passes what ONNX's evaluator finds {distance:g} off")


def _evaluated(model: ir.Model, sample: Mapping[str, np.ndarray]) -> Outputs:
    evaluator = ReferenceEvaluator(ir.serde.serialize_model(model))
    results = evaluator.run(None, dict(sample))
    return dict(zip(evaluator.output_names, results, strict=True))


def apart(one: Outputs, other: Outputs) -> float:
    """Return the largest difference over the largest finite value; inf if only one is finite."""
    worst = 0.0
    for name, left in one.items():
        a, b = left.astype(np.float64), other[name].astype(np.float64)
        finite = np.isfinite(a)
        if a.shape != b.shape or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        a, b = a[finite], b[finite]
        scale = np.abs(a).max(initial=0.0)
        difference = np.abs(a - b).max(initial=0.0)
        worst = max(worst, float(difference / scale) if scale else float(difference))
    return worst


def explore(examples: int, start: int, folder: Path) -> tuple[Tally, str]:
    """Return the tally, and what failed; empty if nothing did.

    Args:
        examples: How many graphs to draw.
        start: Seed of the drawing.
        folder: Takes `fuzz-<seed>.onnx` and the sample, if something fails: the smallest found.
    """
    tally = Tally()
    last: list[Drawn] = []

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(DRAWN, st.data())
    def run(drawn: Drawn, choose: st.DataObject) -> None:
        last[:] = [drawn]
        examine(drawn, choose, tally)

    try:
        run()
    except Exception as error:  # noqa: BLE001 - every error is a finding
        # Hypothesis ends with the smallest example that fails.
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(last[0].proto, folder / f"fuzz-{start}.onnx")
        np.savez(folder / f"fuzz-{start}.npz", **last[0].sample)  # type: ignore[arg-type]
        print(onnx.printer.to_text(last[0].proto), file=sys.stderr)
        return tally, f"{type(error).__name__}: {error} ({folder}/fuzz-{start}.onnx)"
    return tally, ""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:  # noqa: ARG001
    """Return the figures; the seed comes from HALFWISE_FUZZ_SEED, or is fresh."""
    start = int(os.environ.get(SEED_VARIABLE, secrets.randbits(32)))
    print(f"seed {start}", file=sys.stderr)
    tally, failed = explore(EXAMPLES, start, Path("runs"))
    return [
        equal("what fails", failed, "", f"{SEED_VARIABLE}={start}"),
        reported("graphs examined", tally.examined, f"{tally.refused} refused"),
        at_most("difference of the emulations / largest output", tally.apart, TOLERANCE),
        at_most(
            "error in ONNX's evaluator where the emulation finds 0.5 % at most",
            tally.off,
            LIMIT,
            f"{tally.evaluated} FP16 models",
        ),
    ], None


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--out", type=Path, default=Path("runs"), help="takes what fails")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    tally, failed = explore(given.examples, given.seed, given.out)
    print(f"{tally}\n{failed or 'everything holds'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
