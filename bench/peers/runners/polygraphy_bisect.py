"""Polygraphy's bisecting marker, with halfwise's emulation where it would build an engine.

Its layers are the nodes that may be FP16, in the order of the graph. It assumes that marking none
fails, so that is tried first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from child import main
from polygraphy.tools.debug.subtool.precision import BisectMarker

from halfwise.case import Case
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.fixing.rewrite import rewrite, save_checked
from halfwise.fixing.trial import Trials
from halfwise.formats import FP16
from halfwise.graph.roles import Roles, roles_of
from halfwise.judging.reference import inspected_reference
from halfwise.options.loading import load_case
from halfwise.options.options import Data
from halfwise.records import Criterion, NodeName


def convert(task: Path, mixed: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Search, and write the model that the marker ends with: its last good one, else all FP32."""
    told = json.loads((task / "judging.json").read_text(encoding="utf-8"))
    data = Data(str(task / "calibration"))
    case = load_case(task / "model.onnx", data, Criterion(**told["criterion"]), split=False)
    roles = roles_of(case.network)
    kept, builds = bisect(trials(case, roles, told["accumulate"]), settings["direction"])
    made, _ = rewrite(case.network, roles, kept, FP16, fixed=kept, low_io=frozenset())
    save_checked(made.model, mixed)
    return {"builds": builds}


def bisect(tried: Trials, direction: str) -> tuple[frozenset[NodeName], int]:
    """Return the nodes marked in the last good build, all if none was, and how many were tried."""
    layers = tried.runner.switches.nodes
    good, builds = frozenset(layers), 1
    if tried.evaluate(frozenset()).passed:
        return frozenset(), builds
    marker = BisectMarker(len(layers), direction)
    ended = False
    while not ended:
        marked = frozenset(layers[i] for i in marker.select_layers())
        passed = tried.evaluate(marked).passed
        builds += 1
        good = marked if passed else good
        ended = marker.step(passed)
    return good, builds


def trials(case: Case, roles: Roles, accumulate: str) -> Trials:
    """Return the evaluation of any set of marked nodes on all samples, at the full tolerance."""
    switched = emulate_switched(case.network, roles, FP16, accumulate=accumulate)
    return Trials(
        runner=SwitchedRunner(lambda: switched),
        samples=case.calibration,
        references=inspected_reference(case.network, case.calibration)[0],
        criterion=case.criterion,
        factor=1.0,
        metric=case.metric,
        resolve=lambda marked: marked,
    )


if __name__ == "__main__":
    main(convert)
