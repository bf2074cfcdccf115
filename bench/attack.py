"""Attacks on the command line: hostile files, functions, workers, surroundings, and lies.

    python bench/attack.py               all of them
    python bench/attack.py functions …   some families
    python bench/attack.py --quick       those that tests run
    python bench/attack.py --only TEXT   those whose names contain TEXT; shows what each printed
    python bench/attack.py files --keep bench/results
                                         a family; its figures replace its earlier ones
    python bench/attack.py lies small … --jobs 16 --json found.json
                                         on 16 processes; a tally of each family as JSON

An attack fails on a traceback, a signal, too much time or memory, an exit code that is not among
its allowed ones, more than 2 KB on standard error, standard output that is not JSON although
`--json` was given, temporary files or processes left behind, or "passed" for a broken candidate.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.attacks import FAMILIES
from bench.attacks.attack import Attack, Outcome, faults
from bench.attacks.server import Server
from bench.figures import Figure, Result, at_most, equal, reported
from bench.runs import Workbench
from halfwise.errors import PASSED, VERDICT_FAILED

SERVERS = 2


@dataclass(frozen=True)
class Tried:
    """One attack and its outcome.

    Attributes:
        family: Its family.
        attack: The attack.
        outcome: Its outcome.
        faults: What halfwise did wrong.
    """

    family: str
    attack: Attack
    outcome: Outcome
    faults: list[str]


def module_of(family: str) -> str:
    """Return the module of a family."""
    return f"bench.attacks.{family}"


def tried(
    modules: Sequence[str],
    folder: Path,
    *,
    quick: bool = False,
    only: str = "",
    servers: int = SERVERS,
) -> Iterator[Tried]:
    """Run the attacks of modules, some at a time, and yield each as it ends.

    Args:
        modules: Names of modules with a list `ATTACKS`.
        folder: For the attacks' files, which are removed after each.
        quick: Whether to run only those marked quick.
        only: Text that names must contain.
        servers: How many run at a time.
    """
    planned = [
        (module, index, attack)
        for module in modules
        for index, attack in enumerate(importlib.import_module(module).ATTACKS)
        if (attack.quick or not quick) and only in attack.name
    ]
    with ExitStack() as stack:
        free: queue.Queue[Server] = queue.Queue()
        for _ in range(min(servers, len(planned))):
            free.put(stack.enter_context(Server(modules)))

        def run(number: int) -> Tried:
            module, index, attack = planned[number]
            place = folder / str(number)
            place.mkdir()
            server = free.get()
            try:
                outcome = server.run(module, index, place)
            finally:
                free.put(server)
                # As bytes: attacks make names that are no text.
                shutil.rmtree(os.fsencode(place), ignore_errors=True)
            found = faults(attack, outcome)
            return Tried(module.rpartition(".")[2], attack, outcome, found)

        pool = stack.enter_context(ThreadPoolExecutor(servers))
        for done in as_completed([pool.submit(run, number) for number in range(len(planned))]):
            yield done.result()


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Run all attacks; nothing is skipped."""
    tallies = {}
    for family in FAMILIES:
        folder = bench.folder / "attack" / family
        folder.mkdir(parents=True)
        started = time.monotonic()
        found = list(tried([module_of(family)], folder))
        tallies[family] = tally(found, time.monotonic() - started)
    bench.details["attack"] = tallies
    return figures(tallies), None


def tally(found: Sequence[Tried], seconds: float) -> dict[str, Any]:
    """Return the results of a family's attacks, as JSON.

    Times and memory are grouped by the limit that applied: usually "60 s" and "1074 MB".
    """
    longest: dict[str, float] = {}
    largest: dict[str, float] = {}
    for one in found:
        for most, limit, measured in (
            (longest, f"{one.attack.seconds:g}", one.outcome.seconds),
            (largest, f"{one.attack.memory / 1e6:.0f}", one.outcome.memory / 1e6),
        ):
            most[limit] = max(most.get(limit, 0.0), measured)
    codes = Counter(str(t.outcome.code) for t in found)
    lies, twins = ([t for t in found if getattr(t.attack, kind)] for kind in ("broken", "sound"))
    return {
        "attacks": len(found),
        "seconds": seconds,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        # A false alarm on a sound twin has a figure of its own.
        "failed": sum(
            bool(t.faults) and not (t.attack.sound and t.outcome.code == VERDICT_FAILED)
            for t in found
        ),
        "faults": {t.attack.name: t.faults for t in found if t.faults},
        "codes": dict(sorted(codes.items())),
        "longest": longest,
        "largest": largest,
        "lies": len(lies),
        "passed": [t.attack.name for t in lies if t.outcome.code == PASSED],
        "twins": len(twins),
        "alarms": [t.attack.name for t in twins if t.outcome.code != PASSED],
    }


def figures(tallies: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """Return the figures of families from their tallies."""

    def joined(key: str) -> list[str]:
        return [name for each in tallies.values() for name in each[key]]

    lies, twins = (sum(each[key] for each in tallies.values()) for key in ("lies", "twins"))
    passed, alarms = joined("passed"), joined("alarms")
    found = [
        reported("seconds of all attacks", sum(each["seconds"] for each in tallies.values())),
        equal(f'false "passed" in {lies} lies', len(passed), 0, "; ".join(passed)),
    ]
    if twins:
        share = f"share of {twins} sound twins that do not pass"
        found.append(at_most(share, len(alarms) / twins, 0.01, "; ".join(alarms)))
    for family, each in tallies.items():
        found += [
            reported(f"{family}: attacks", each["attacks"]),
            equal(f"{family}: attacks that failed", each["failed"], 0),
        ]
        for key, told in (("longest", "longest, seconds"), ("largest", "most memory, MB")):
            for limit, measured in each[key].items():
                found.append(
                    at_most(f"{family}: {told}, of those up to {limit}", measured, float(limit))
                )
    return found


def keep(family: str, found: Mapping[str, Any], results: Path) -> None:
    """Write one family's tally into the result in a folder, next to those of other families."""
    file = results / "attack.json"
    kept = json.loads(file.read_text(encoding="utf-8"))["details"] if file.is_file() else {}
    kept = {name: {**kept, family: found}[name] for name in FAMILIES if name in {*kept, family}}
    command = "python bench/run.py attack"
    Result("attack", command, figures(kept), None, details=kept).save(results)


def _told(one: Tried, *, whole: bool) -> str:
    mark, outcome = "FAILED" if one.faults else "ok", one.outcome
    lines = [
        f"{mark:6}  {one.family}: {one.attack.name}  "
        f"(code {outcome.code}, {outcome.seconds:.1f} s, {outcome.memory / 1e6:.0f} MB)",
        *(f"          {fault}" for fault in one.faults),
    ]
    if whole:
        lines += [
            f"    | {line}" for text in (outcome.out, outcome.err) for line in text.split("\n")
        ]
    elif one.faults:
        lines += [f"          | {line[:300]}" for line in outcome.err.strip().split("\n")[-3:]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks that the command line names; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"among {', '.join(FAMILIES)}"
    )
    parser.add_argument("--quick", action="store_true", help="those that tests run")
    parser.add_argument("--only", metavar="TEXT", default="", help="those whose names hold a text")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="write these families' figures into FOLDER/attack.json, beside those of others",
    )
    parser.add_argument("--jobs", type=int, metavar="N", default=SERVERS, help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tallies into FILE")
    given = parser.parse_args(arguments)
    if unknown := set(given.families) - {*FAMILIES}:
        parser.error(f"no family is called {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    if given.keep and (given.quick or given.only):
        parser.error("--keep is for whole families")
    count, failed, tallies = 0, 0, dict[str, Any]()
    for family in given.families or FAMILIES:
        started, found = time.monotonic(), []
        with tempfile.TemporaryDirectory(prefix="halfwise-attack-") as folder:
            modules = [module_of(family)]
            some = {"quick": given.quick, "only": given.only, "servers": given.jobs}
            for one in tried(modules, Path(folder), **some):
                found.append(one)
                if one.faults or given.only:
                    print(_told(one, whole=bool(given.only)), flush=True)
        count, failed = count + len(found), failed + sum(bool(one.faults) for one in found)
        tallies[family] = tally(found, time.monotonic() - started)
        if given.keep:
            keep(family, tallies[family], given.keep)
    if given.json:
        given.json.write_text(json.dumps(tallies, indent=1) + "\n", encoding="utf-8")
    print(f"{failed} of {count} attacks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
