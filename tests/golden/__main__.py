"""The commands of golden runs."""

import argparse
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

from bench.runs import MODELS_VARIABLE
from tests.golden import __doc__ as described
from tests.golden.comparing import differences, other_plan
from tests.golden.entries import ENTRIES
from tests.golden.running import golden_facts, run_all, store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    0, 1 where something differs or was cut short, 2 for a wrong name.
    """
    parser = argparse.ArgumentParser(
        "python -m tests.golden",
        description=described,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("compare", "renew", "list"))
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--moved", metavar="SEED", type=int, help="move inputs by their last bit")
    given = parser.parse_intermixed_args(arguments)
    if given.command == "renew" and not given.names:
        parser.error("name what to renew")
    names = [name for name in ENTRIES if not given.names or _is_named(name, given.names)]
    for pattern in given.names:
        if not any(_is_named(name, [pattern]) for name in ENTRIES):
            parser.error(f"no entry is called {pattern}; see list")
    absent = [name for name in names if not ENTRIES[name].is_here]
    if absent and given.command != "list":
        print(f"left out, as {MODELS_VARIABLE} has no such models: {', '.join(absent)}")
    here = [name for name in names if name not in absent]
    if given.command == "list":
        return _list(names)
    if given.command == "renew":
        return _renew(here, given.jobs)
    return _compare(here, given.jobs, given.moved)


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    groups = [p.rstrip("/") for p in patterns if p not in ENTRIES]
    within = any(name.startswith(f"{group}/") for group in groups)
    return within or any(fnmatchcase(name, p) for p in patterns)


def _compare(names: Sequence[str], jobs: int, moved: int | None) -> int:
    found, totals = list[str](), {"evaluations": [0, 0], "work": [0, 0]}
    for name, now in run_all(names, jobs, moved=moved):
        before = golden_facts(name)
        if before is None:
            print(f"{name}: not frozen yet", flush=True)
            found.append(name)
            continue
        for total, sums in totals.items():
            sums[0] += before.get(total, 0)
            sums[1] += now.get(total, 0)
        differing = differences(name, before, now)
        for difference in differing:
            print(difference, flush=True)
        if not differing and other_plan(before, now):
            print(f"({name}: another plan, allowed)", flush=True)
        found += [name] if differing else []
    for total, (before_sum, now_sum) in totals.items():
        ratio = f"{now_sum / before_sum:.3f} ×" if before_sum else "-"
        print(f"{total}: {before_sum} before, {now_sum} now, {ratio}")
    print(f"{len(found)} of {len(names)} entries differ")
    return int(bool(found))


def _renew(names: Sequence[str], jobs: int) -> int:
    hurried = 0
    for name, now in run_all(names, jobs):
        if ended := now.get("hurried"):
            hurried += 1
            print(f"{name}: not renewed, as this cut it short: {', '.join(ended)}")
            continue
        before = golden_facts(name)
        store(ENTRIES[name].group, {name: now})
        for difference in differences(name, before, now) if before else ():
            print(difference)
        print(f"{name}: {'new' if before is None else 'as it was' if before == now else 'renewed'}")
    print("Say in the commit why each of them changed.")
    return int(bool(hurried))


def _list(names: Sequence[str]) -> int:
    for name in names:
        options = " ".join(ENTRIES[name].options)
        print(f"{name}  {options}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
