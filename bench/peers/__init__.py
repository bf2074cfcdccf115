"""Other mixed-precision tools next to halfwise: same models, same samples, same judge.

Each peer runs in its own virtual environment, made from `requirements-*.txt` and kept under
$XDG_CACHE_HOME/halfwise-bench; each conversion runs in a separate process with a time limit.
`tools/comparison.py` makes docs/comparison.md and the table in README.md from the result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.figures import Figure, equal, reported
from bench.peers.attempts import LIMIT_SECONDS, Attempt, attempt
from bench.peers.counting import RULE
from bench.peers.environments import Environment, environment
from bench.peers.tasks import Task, tasks_of
from bench.peers.tools import TOOLS
from bench.runs import ROOT, Workbench

LANES = 2
"""Models at a time: most time goes into imports, which use one core."""

Attempts = Mapping[str, Mapping[str, Attempt]]
"""By model, then by tool."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Run every tool on every available model; return figures, and what was not run.

    The results of each tool on each model go into the details.
    """
    needed = dict.fromkeys(tool.environment for tool in TOOLS if tool.environment)
    places = {name: environment(name) for name in needed}
    absent = [f"{name}: {place.missing}" for name, place in places.items() if place.missing]
    if places and len(absent) == len(places):
        return [], "; ".join(absent)
    chosen = tasks_of(bench)

    def every_tool(task: Task) -> dict[str, Attempt]:
        print(f"  {task.name} …", file=sys.stderr, flush=True)
        return {
            tool.name: attempt(tool, task, places.get(tool.environment or ""), resume=bench.resume)
            for tool in TOOLS
        }

    with ThreadPoolExecutor(LANES) as lanes:
        found = dict(zip([t.name for t in chosen], lanes.map(every_tool, chosen), strict=True))
    bench.details["peers"] = details(chosen, found, places)
    skipped = "; ".join([*absent, *filter(None, [bench.missing()])])
    return figures(found), skipped or None


def figures(found: Attempts) -> list[Figure]:
    """Return the claims: halfwise passes, and no peer that passes keeps fewer nodes.

    Three kinds of results are listed apart: of a model in which the peer fused nodes, of one whose
    constants it clipped within FP16's range, and of nodes that halfwise keeps for its headroom, for
    values that no sample holds.
    """
    failed = [name for name, ends in found.items() if not ends["halfwise"].passed]
    lists: dict[str, list[str]] = {"": [], "fused": [], "clipped": [], "headroom": []}
    passing = 0
    for name, ends in found.items():
        own = ends["halfwise"]
        for tool, end in ends.items():
            kept = end.kept if tool != "halfwise" and end.passed else None
            passing += kept is not None
            if kept is None or own.kept is None or kept >= own.kept:
                continue
            lists[_kind(end, own)].append(f"{tool} on {name} ({kept} for {own.kept})")
    what = f"results of peers that pass, of {passing}, with fewer FP32 nodes than halfwise's"
    return [
        equal("models that halfwise does not pass", len(failed), 0, ", ".join(failed)),
        equal(what, len(lists[""]), 0, ", ".join(lists[""])),
        *(
            reported(f"{what}, {why}", len(lists[kind]), ", ".join(lists[kind]))
            for kind, why in (
                ("fused", "after fusing nodes"),
                ("clipped", "after clipping constants that FP16 holds"),
                ("headroom", "by those kept for headroom alone"),
            )
        ),
    ]


def _kind(end: Attempt, own: Attempt) -> str:
    """Return why a peer keeps fewer nodes than halfwise; empty if nothing explains it."""
    if end.fused:
        return "fused"
    if end.clipped:
        return "clipped"
    return "headroom" if (end.kept or 0) >= (own.kept or 0) - own.headroom else ""


def details(
    chosen: list[Task], found: Attempts, places: Mapping[str, Environment]
) -> dict[str, Any]:
    """Return everything that the comparison shows, for JSON."""
    return {
        "rule": RULE,
        "limit_seconds": LIMIT_SECONDS,
        "lanes": LANES,
        "tools": {
            tool.name: {
                "title": tool.title,
                "packages": places[tool.environment].packages if tool.environment else {},
                "settings": dict(tool.settings),
            }
            for tool in TOOLS
        },
        "models": {
            task.name: {
                "family": task.family,
                "nodes": task.nodes,
                "calibration": task.samples[0],
                "heldout": task.samples[1],
                "options": [a.replace(f"{ROOT}/", "") for a in task.arguments],
                "attempts": {tool: end.told() for tool, end in found[task.name].items()},
            }
            for task in chosen
        },
    }
