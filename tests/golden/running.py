"""Running entries, and the files that hold what they decided."""

import ctypes
import io
import json
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

from halfwise.__main__ import main
from tests.golden.entries import ENTRIES, Entry
from tests.golden.facts import Facts, facts

FOLDER = Path(__file__).resolve().parent


def run(entry: Entry, *, moved: int | None = None) -> Facts:
    """Run an entry in this process, as the command line does, in a folder that goes afterwards.

    `moved` is that of `Entry.words`.

    Raises:
        RuntimeError: The command line ended with a traceback; it is in the message.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="golden-")))
        words = entry.words(folder, stack, moved=moved)
        stack.enter_context(chdir(folder))
        stack.enter_context(patch.object(sys, "argv", ["halfwise", *words]))
        # Real streams: the command line reconfigures them.
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return facts(code, folder / "run")


def run_all(
    names: Iterable[str], jobs: int, *, moved: int | None = None
) -> Iterator[tuple[str, Facts]]:
    """Yield each entry's name and facts in the given order; with one job in this process.

    Longest first would end sooner, but what is slow changes; the order is that of `ENTRIES`.
    """
    entries = [ENTRIES[name] for name in names]
    if jobs == 1:
        yield from ((entry.name, run(entry, moved=moved)) for entry in entries)
        return
    # Fresh processes: threads of ONNX Runtime do not survive a fork.
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent) as pool:
        found = pool.map(partial(_run_named, moved=moved), [entry.name for entry in entries])
        yield from zip((entry.name for entry in entries), found, strict=True)


def _end_with_parent() -> None:
    # Else they wait for work forever where a signal ended it (Linux: `prctl(2)`, PR_SET_PDEATHSIG).
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)


def _run_named(name: str, *, moved: int | None) -> Facts:
    return run(ENTRIES[name], moved=moved)


def golden(group: str) -> dict[str, Facts]:
    """Return the facts of a group's entries by name; empty where it has no file."""
    file = FOLDER / f"{group}.json"
    return json.loads(file.read_bytes()) if file.is_file() else {}


def golden_facts(name: str) -> Facts | None:
    """Return the facts of an entry, None where it has none yet."""
    return golden(ENTRIES[name].group).get(name)


def store(group: str, found: dict[str, Facts]) -> None:
    """Replace facts of a group's entries; those that are no entries any more go."""
    held = {**golden(group), **found}
    kept = {name: held[name] for name in ENTRIES if name in held and ENTRIES[name].group == group}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    (FOLDER / f"{group}.json").write_text(f"{text}\n", encoding="utf-8")
