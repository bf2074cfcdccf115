"""Plant each fault in a copy of the source and say which test of `make test` finds it.

    python -m tests.mutations            all twenty
    python -m tests.mutations TEXT…      those whose names hold a text
    python -m tests.mutations --jobs 4   four at a time instead of one per core

The exit code is 1 if a fault is not found.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations import MUTATIONS, Mutation, plant

ROOT = Path(__file__).resolve().parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def finder(mutation: Mutation) -> str | None:
    """Return the first test that fails with a mutation; None where all pass.

    Raises:
        RuntimeError: The tests could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="halfwise-mutation-") as folder:
        source = Path(folder, "src")
        # With the compiled modules, whose times stay.
        shutil.copytree(ROOT / "src", source)
        plant(mutation, source / "halfwise")
        ran = subprocess.run(
            [*PYTEST, *mutation.tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    failed = _TEST.search(ran.stdout)
    if ran.returncode == 0:
        return None
    if ran.returncode != 1 or failed is None:
        raise RuntimeError(f"{mutation.name}: pytest ended with {ran.returncode}\n{ran.stdout}")
    return failed[1]


def main() -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="TEXT")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if any(n in m.name for n in options.names or [""])]

    def show(mutation: Mutation) -> bool:
        began = time.monotonic()
        try:
            test, why = finder(mutation), ""
        except (RuntimeError, ValueError) as error:
            test, why = None, f"\n{error}"
        seconds = time.monotonic() - began
        print(f"{test or 'NOT FOUND':100}  {seconds:4.0f} s  {mutation.name}{why}", flush=True)
        return test is not None

    with ThreadPoolExecutor(options.jobs) as pool:
        shown = [*pool.map(show, chosen)]
    print(f"{sum(shown)} of {len(shown)} found")
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(main())
