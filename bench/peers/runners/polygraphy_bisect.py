"""Polygraphy's bisecting marker, with halfwise's emulation where it would build an engine.

Its layers are the nodes that may be FP16, in the order of the graph. It assumes that marking none
fails, so that is tried first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from child import main
from polygraphy.tools.debug.subtool.precision import BisectMarker

from halfwise.case import Case, Sample
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.fixing.rewrite import rewrite, save_checked
from halfwise.formats import FP16
from halfwise.graph.roles import Roles, roles_of
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import Outputs
from halfwise.options.loading import load_case
from halfwise.options.options import Data
from halfwise.records import Criterion, NodeName

Nodes = frozenset[NodeName]


def convert(task: Path, mixed: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Search, and write the model that the marker ends with: its last good one, else all FP32."""
    told = json.loads((task / "judging.json").read_text(encoding="utf-8"))
    data = Data(str(task / "calibration"))
    case = load_case(task / "model.onnx", data, Criterion(**told["criterion"]), split=False)
    roles = roles_of(case.network)
    judge = Marked(case, roles, told["accumulate"])
    references = inspected_reference(case.network, case.calibration)[0]
    tolerance = Tolerance(case.criterion, case.metric)
    bench = Bench(judge, case.calibration, references, tolerance)
    kept, builds = bisect(bench, judge.layers, settings["direction"])
    made = rewrite(case.network, roles, kept, FP16, fixed=kept, low_io=frozenset())
    save_checked(made.model, mixed)
    return {"builds": builds}


class Marked:
    """Runs a model with the marked nodes in FP32, all others low."""

    def __init__(self, case: Case, roles: Roles, accumulate: str) -> None:
        """Load the model that runs any of them."""
        switched = emulate_switched(case.network, roles, FP16, accumulate=accumulate)
        self._runner = SwitchedRunner(lambda: switched)
        self.layers = self._runner.switches.nodes

    def prepare(self, marked: Nodes, /) -> None:
        """Load the model, unless it is loaded."""
        self._runner.prepare(marked)

    def run(self, sample: Sample, marked: Nodes, /) -> Outputs:
        """Return its outputs."""
        return self._runner.run(sample, marked)

    def release(self) -> None:
        """Free the model."""
        self._runner.release()


def bisect(bench: Bench[Nodes], layers: Sequence[NodeName], direction: str) -> tuple[Nodes, int]:
    """Return the nodes marked in the last good build, all if none was, and how many were tried."""
    good, builds = frozenset(layers), 1
    if bench.evaluate(frozenset()).passed:
        return frozenset(), builds
    marker = BisectMarker(len(layers), direction)
    ended = False
    while not ended:
        marked = frozenset(layers[i] for i in marker.select_layers())
        passed = bench.evaluate(marked).passed
        builds += 1
        good = marked if passed else good
        ended = marker.step(passed)
    return good, builds


if __name__ == "__main__":
    main(convert)
