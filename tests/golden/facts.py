"""What a run decided, read from its exit code and its `run.json`: the only reader of either here.

Where the record's form changes, this file follows, and nothing else of the golden runs does.
"""

import json
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""What a run decided, as JSON: no sentence, no time, no hash.

code: Exit code.
passed: Whether the verdict passed; this and all that follows is absent without a `run.json`.
sums: Lowest format of sums with which it is known to pass; None where that does not matter.
cost: Predicted, over everything low, to four digits after the point; None where it is unknown.
kept: Kept node → the kind of the guard that names the cause; None where there is none.
types: Kept node → its type, where that is not FP32.
spare: Kept nodes that could be low in a dearer plan, so that nothing breaks them.
ruled: Kept nodes that something else than the search keeps.
repairs: Each as its rule and its number of nodes, "scale 3", in order.
repaired: Kinds of the guards that repairs resolve.
suspected: Kinds of all guards: what the run knows of this model.
int8, left_out: Nodes in INT8; those that are not, as in `kept`.
rung, builds: Type of the delivered engine, and number of builds.
hurried: The clock or Ctrl-C, where they cut the run short: another run may end otherwise.
evaluations: Plans tried.
work: All work in inferences over the calibration samples, repairs and the search without them
    included, which `evaluations` leaves out.

Empty lists and objects are left out.
"""


TIMES = {"seconds", "interrupt"}
"""What ends a run at another place each time; its work limit does not."""


def facts(code: int, folder: Path) -> Facts:
    """Return what the run in `folder`, which may be missing, decided."""
    file = folder / "run.json"
    if not file.is_file():
        return {"code": code}
    run = json.loads(file.read_bytes())
    plan, search, worth = run["plan"] or {}, run["search"] or {}, run["worth"] or {}
    keep, repairs = plan.get("keep", ()), plan.get("repairs", ())
    cost, engines = worth.get("cost"), run["engines"]
    found = {
        "code": code,
        "passed": run["verdict"]["passed"],
        "sums": run["verdict"].get("sums"),
        "cost": None if cost is None else round(cost, 4),
        "kept": _causes(keep),
        "types": {k["node"]: k["precision"] for k in keep if k["precision"] != "fp32"},
        "spare": [k["node"] for k in keep if (k["because"] or {}).get("spare")],
        "ruled": [k["node"] for k in keep if k["kept_by"] != "search"],
        "repairs": [f"{r['rule']} {len(r['nodes'])}" for r in repairs],
        "repaired": sorted({guard["kind"] for r in repairs for guard in r["guards"]}),
        "suspected": sorted({guard["kind"] for guard in run["guards"]}),
        "int8": plan.get("int8", []),
        "left_out": _causes(plan.get("left_out", ())),
        "rung": engines and engines["rung"],
        "builds": engines and len(engines["builds"]),
        "hurried": sorted(TIMES & set(search.get("ended_by", ()))),
        "evaluations": run["cost"]["evaluations"],
        "work": round(search.get("spent") or 0),
    }
    return {
        name: value
        for name, value in found.items()
        if value not in ([], {}) and (value is not None or name in ("cost", "sums"))
    }


def _causes(kept: Any) -> dict[str, str | None]:
    return {entry["node"]: entry["guard"] for entry in kept}
