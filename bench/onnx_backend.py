"""Every backend test of the onnx package that ONNX Runtime runs: no traceback, nothing unsound.

Each test is examined in a worker process, so that a crash of ONNX Runtime ends that test alone.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from queue import Empty, SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from onnx.backend.test.case.test_case import TestCase

from bench import onnx_cases
from bench.figures import Figure, equal, reported
from bench.onnx_cases import Outcome
from bench.runs import Workbench
from halfwise.formats import BF16, FP16, Format

WORKERS, SECONDS = 2, 120
LISTED = 12


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:  # noqa: ARG001
    """Return the figures over all tests."""
    numbers = range(len(_names()))
    outcomes, in_bf16 = examined(numbers), examined(numbers, fmt=BF16)
    run = [o for o in outcomes if o.code is not None]
    wrong, wrong_bf16 = _wrong(outcomes), _wrong(in_bf16)
    differing = [o.name for o in run if o.identical is False]
    counts = Counter(str(o.code) for o in run)
    compared = sum(o.identical is not None for o in run)
    refused = Counter(kind_of(o.message) for o in run if o.code == 3)
    return [
        reported("backend tests", len(outcomes), f"{len(run)} of them run by ONNX Runtime"),
        equal("those with another exit code than 0, 3 or 10", len(wrong), 0, some(wrong)),
        equal("those in BF16", len(wrong_bf16), 0, some(wrong_bf16)),
        equal("all-FP32 rewritings that differ in a bit", len(differing), 0, some(differing)),
        reported("all-FP32 rewritings compared", compared),
        *(reported(f"end with {code}", n) for code, n in sorted(counts.items())),
        reported("refused because of", "; ".join(f"{n} × {w}" for w, n in refused.most_common())),
    ], None


def _wrong(outcomes: Sequence[Outcome]) -> list[str]:
    expected = (None, *onnx_cases.EXPECTED)
    return [f"{o.name}: {o.code} {o.message}" for o in outcomes if o.code not in expected]


def examined(
    indices: Sequence[int], seconds: float = SECONDS, *, fmt: Format = FP16
) -> list[Outcome]:
    """Return the outcome of the tests with these numbers in a low format, in their order.

    A worker that dies or takes longer than `seconds` is replaced, and its test's outcome says so.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    for index in indices:
        waiting.put(index)
    found: dict[int, Outcome] = {}
    names = _names()

    def work() -> None:
        pool = _worker()
        while True:
            try:
                index = waiting.get_nowait()
            except Empty:
                break
            try:
                found[index] = pool.submit(_examine, index, fmt).result(seconds)
            except (BrokenProcessPool, futures.TimeoutError) as error:
                died = isinstance(error, BrokenProcessPool)
                what = "the process died" if died else f"not done after {seconds:g} s"
                found[index] = Outcome(names[index], "crash", None, what)
                _end(pool)
                pool = _worker()
        pool.shutdown()

    with ThreadPoolExecutor(WORKERS) as threads:
        for done in [threads.submit(work) for _ in range(WORKERS)]:
            done.result()
    return [found[i] for i in indices]


def _worker() -> ProcessPoolExecutor:
    # Spawned, because a process with running threads must not be forked.
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):  # noqa: SLF001 - no public way to end one
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


def _examine(index: int, fmt: Format) -> Outcome:
    if not _CASES:
        _CASES.extend(onnx_cases.cases())
    return onnx_cases.examine(_CASES[index], fmt)


_CASES: list[TestCase] = []
"""The tests, once for each worker."""


def _names() -> list[str]:
    return [case.name for case in onnx_cases.cases()]


def kind_of(message: str) -> str:
    """Return a message without names, to count messages of one kind."""
    return " ".join(w for w in message.split()[:9] if "'" not in w and "test_" not in w)


def some(items: Sequence[str]) -> str:
    rest = f"; and {len(items) - LISTED} more" if len(items) > LISTED else ""
    return "; ".join(items[:LISTED]) + rest
