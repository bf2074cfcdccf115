"""Any folder of models: whatever ONNX Runtime runs gets a verdict, or a true reason why not.

The models are those under `intake` in the folder that HALFWISE_BENCH_MODELS names.
Inputs are random.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import onnxruntime

from bench.figures import Figure, equal, reported
from bench.onnx_backend import kind_of, some
from bench.onnx_cases import EXPECTED, FAILURES, Array, Outcome, fixed
from bench.runs import MODELS_VARIABLE, Workbench

FOLDER = "intake"
SAMPLES = 4
SIZES = (2, 1, 4, 8, 64)
"""Sizes tried for all dynamic axes until the model runs."""
_REFUSED = "ONNX refuses"
"""What `fix` says if the tools of ONNX refuse a file."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures over all models of the folder."""
    folder = bench.models and bench.models / FOLDER
    if not folder or not folder.is_dir():
        return [], f"there is no folder {FOLDER} in {MODELS_VARIABLE}"
    outcomes = [examine(path) for path in sorted(folder.rglob("*.onnx"))]
    run = [o for o in outcomes if o.code is not None]
    wrong = [f"{o.name}: {o.code} {o.message}" for o in run if o.code not in EXPECTED]
    refused = [o for o in run if o.code == 3]
    untaken = [o.name for o in refused if _REFUSED in o.message]
    reasons = Counter(kind_of(o.message) for o in refused)
    return [
        reported("models", len(outcomes), f"{len(run)} of them run by ONNX Runtime"),
        equal("those with another exit code than 0, 3 or 10", len(wrong), 0, some(wrong)),
        equal("those that the tools of ONNX refuse", len(untaken), 0, some(untaken)),
        *(reported(f"end with {c}", n) for c, n in sorted(Counter(o.code for o in run).items())),
        reported("refused because of", "; ".join(f"{n} × {w}" for w, n in reasons.most_common())),
    ], None


def examine(path: Path) -> Outcome:
    """Return the outcome of `fix` on random inputs, if ONNX Runtime runs the file on them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options)
        samples = next(_runnable(session))
    except (*FAILURES, StopIteration) as error:
        return Outcome(path.name, None, message=str(error))
    code, message = fixed(path, samples)
    # Equal reasons count together, and results name no folder of this machine.
    return Outcome(path.name, code, message=message.replace(str(path), "the model"))


def runnable(path: Path) -> list[dict[str, Array]] | None:
    """Return random samples on which ONNX Runtime runs a file; None if it runs on none."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return next(_runnable(onnxruntime.InferenceSession(path, options)), None)
    except FAILURES:
        return None


def _runnable(session: onnxruntime.InferenceSession) -> Iterator[list[dict[str, Array]]]:
    """Yield samples that the session runs on."""
    for size in SIZES:
        samples = [dict(_drawn(session, size, seed)) for seed in range(SAMPLES)]
        try:
            for sample in samples:
                session.run(None, sample)
        except FAILURES:
            continue
        yield samples


def _drawn(
    session: onnxruntime.InferenceSession, size: int, seed: int
) -> Iterator[tuple[str, Array]]:
    generator = np.random.default_rng(seed)
    for given in session.get_inputs():
        shape = [d if isinstance(d, int) and d > 0 else size for d in given.shape]
        name = given.type.removeprefix("tensor(").removesuffix(")")
        if name in _FLOATS:
            yield given.name, np.asarray(generator.standard_normal(shape), _FLOATS[name])
        else:
            yield given.name, np.asarray(generator.integers(0, 2, shape), name)


_FLOATS: Mapping[str, type[np.floating]] = {
    "float": np.float32,
    "float16": np.float16,
    "double": np.float64,
}
