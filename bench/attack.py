"""Attacks on the command line: hostile files, functions, workers, surroundings, and lies.

    python bench/attack.py               all of them
    python bench/attack.py functions …   some families
    python bench/attack.py --quick       those that `make test` runs
    python bench/attack.py --only TEXT   those whose names hold a text; shows what each printed

An attack fails on a traceback, a signal, too much time or memory, an exit code outside of those
that it may end with, more than 2 KB on standard error, standard output that is no JSON where
`--json` asks for it, temporary files or processes that stay, or "passed" where it says broken.
"""

from __future__ import annotations

import argparse
import importlib
import os
import queue
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.attacks import FAMILIES
from bench.attacks.attack import Attack, Outcome, faults
from bench.attacks.server import Server
from bench.figures import Figure, at_most, equal, reported
from bench.runs import Workbench
from halfwise.errors import PASSED, VERDICT_FAILED

SERVERS = 2


@dataclass(frozen=True)
class Tried:
    """One attack and what came of it.

    Attributes:
        family: Its family.
        attack: The attack.
        outcome: What came of it.
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
        modules: What holds lists `ATTACKS`.
        folder: Takes the attacks' files, which are removed after each.
        quick: Whether to run only those that are marked so.
        only: What names must hold.
        servers: How many are run at a time.
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
    started = time.monotonic()
    folder = bench.folder / "attack"
    folder.mkdir()
    found = list(tried([module_of(family) for family in FAMILIES], folder))
    bench.details["attack"] = {
        "failed": {f"{t.family}: {t.attack.name}": t.faults for t in found if t.faults},
        "codes": {
            family: dict(sorted(_codes(t for t in found if t.family == family).items()))
            for family in FAMILIES
        },
    }
    figures = [
        reported("seconds of all attacks", time.monotonic() - started),
        *_lies([t for t in found if t.attack.broken], [t for t in found if t.attack.sound]),
    ]
    for family in FAMILIES:
        own = [t for t in found if t.family == family]
        figures += [
            reported(f"{family}: attacks", len(own)),
            equal(f"{family}: attacks that failed", sum(_counts(t) for t in own), 0),
            reported(f"{family}: longest, seconds", max(t.outcome.seconds for t in own)),
            reported(f"{family}: most memory, MB", max(t.outcome.memory for t in own) / 1e6),
        ]
    return figures, None


def _lies(broken: Sequence[Tried], sound: Sequence[Tried]) -> list[Figure]:
    """Return the figures about verdicts: how often "passed" is wrong, and "failed"."""
    passed = [t.attack.name for t in broken if t.outcome.code == PASSED]
    alarms = [t.attack.name for t in sound if t.outcome.code != PASSED]
    return [
        equal(f'false "passed" in {len(broken)} lies', len(passed), 0, "; ".join(passed)),
        at_most(
            f"share of {len(sound)} sound twins that do not pass",
            len(alarms) / len(sound),
            0.01,
            "; ".join(alarms),
        ),
    ]


def _codes(found: Iterable[Tried]) -> Counter[str]:
    return Counter(str(t.outcome.code) for t in found)


def _counts(one: Tried) -> bool:
    """Return whether it failed, a false alarm on a sound twin apart: those have a figure."""
    return bool(one.faults) and not (one.attack.sound and one.outcome.code == VERDICT_FAILED)


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
        lines += [f"          | {line}" for line in outcome.err.strip().split("\n")[-3:]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 1 where an attack failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"among {', '.join(FAMILIES)}"
    )
    parser.add_argument("--quick", action="store_true", help="those that `make test` runs")
    parser.add_argument("--only", metavar="TEXT", default="", help="those whose names hold a text")
    given = parser.parse_args(arguments)
    if unknown := set(given.families) - {*FAMILIES}:
        parser.error(f"no family is called {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    modules = [module_of(family) for family in given.families or FAMILIES]
    count, failed = 0, 0
    with tempfile.TemporaryDirectory(prefix="halfwise-attack-") as folder:
        for one in tried(modules, Path(folder), quick=given.quick, only=given.only):
            count, failed = count + 1, failed + bool(one.faults)
            if one.faults or given.only:
                print(_told(one, whole=bool(given.only)), flush=True)
    print(f"{failed} of {count} attacks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
