"""`fix` for two targets at once: files right on WebGPU, built as asked by TensorRT for RTX.

    python bench/run.py targets        all
    python -m bench.targets NAME …     prints what becomes of models of these names
    python -m bench.targets only …     prints what becomes of them with --only fp16, on WebGPU alone

Models: every failure class of `tests/models`, the bundled example, those of the models folder.
The tolerance is the default one, or the model's metric.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import halfwise
from bench.figures import Figure, at_least, equal, reported
from bench.judges import given, ill
from bench.judging import Model
from bench.runs import Workbench, models_folder
from halfwise.errors import HalfwiseError
from halfwise.reporting.remarks import reasons
from tests.judges import RtxBuilder, WebGpu


@dataclass(frozen=True)
class Found:
    """What became of one model.

    Attributes:
        name: The model.
        passed: The verdict, which is that of the worst target.
        right: Whether the file is right on WebGPU, with fusions and without; None if it did not
            get so far.
        typed: Whether the builder takes it with every kept product in FP32; None likewise.
        kept: Nodes in FP32.
        repairs: Repairs.
        seconds: Time of the run.
        said: Why it did not pass.
    """

    name: str
    passed: bool
    right: bool | None = None
    typed: bool | None = None
    kept: int = 0
    repairs: int = 0
    seconds: float = 0.0
    said: tuple[str, ...] = ()


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures, and what could not be judged."""
    if missing := [m for m in (RtxBuilder().missing(), WebGpu().missing()) if m is not None]:
        return [], " ".join(missing)
    classes = [examined(model) for model in ill(bench.folder)]
    others = [examined(model) for model in given(bench)]
    low = [examined(model, only=True) for model in chain(ill(bench.folder), given(bench))]
    bench.details["targets"] = {
        "both": [asdict(found) for found in (*classes, *others)],
        "only_fp16": [asdict(found) for found in low],
    }
    every = [*figures("failure classes", classes), *figures("real models", others), *alone(low)]
    return every, bench.missing()


def figures(what: str, found: Sequence[Found]) -> list[Figure]:
    """Return the figures on one group of models."""
    wrong = [f"{f.name} ({'; '.join(f.said)})" for f in found if not f.passed]
    right = sum(f.right is True and f.typed is True for f in found)
    return [
        equal(
            f"{what}: right on WebGPU and built as asked, from one run with both targets",
            *(right, len(found), "; ".join(wrong)),
        ),
        reported(f"{what}: nodes kept", sum(f.kept for f in found)),
        reported(f"{what}: repairs", sum(f.repairs for f in found)),
        reported(f"{what}: seconds", round(sum(f.seconds for f in found), 1)),
    ]


def alone(found: Sequence[Found]) -> list[Figure]:
    """Return the figures on models in which nothing is kept, on WebGPU."""
    wrong = [f"{f.name} ({'; '.join(f.said)})" for f in found if not f.passed]
    what = "failure classes and real models with --only fp16: right on WebGPU"
    return [at_least(what, sum(f.right is True for f in found), 66, "; ".join(wrong))]


def examined(model: Model, *, only: bool = False) -> Found:
    """Return what becomes of one model, with `only` on WebGPU alone and nothing kept."""
    os.environ["HALFWISE_WEBGPU_COMMAND"] = shlex.join(WebGpu.command())
    os.environ["HALFWISE_RTX_COMMAND"] = shlex.join(RtxBuilder.command)
    options = {n: v for n, v in model.options.items() if n != "accumulate"}
    options |= {"target": ["webgpu"], "only": "fp16"} if only else {"target": ["webgpu", "rtx"]}
    started = time.monotonic()
    try:
        run = halfwise.fix(
            *(model.file, model.samples),
            allow_random=True, allow_unjudged=True, **options,
        ).run  # fmt: skip
    except HalfwiseError as error:
        return Found(model.name, passed=False, said=(error.message,))
    on_webgpu = [file for file in run.verdict.as_file if file.runner.startswith("WebGPU")]
    in_rtx = [file for file in run.verdict.as_file if file.runner.startswith("TensorRT")]
    found = Found(
        model.name,
        run.verdict.passed,
        right=all(file.passed is True for file in on_webgpu) if on_webgpu else None,
        typed=all(file.built and not file.folded for file in in_rtx) if in_rtx else None,
        kept=len(run.plan.keep) if run.plan else 0,
        repairs=len(run.plan.repairs) if run.plan else 0,
        seconds=round(time.monotonic() - started, 1),
        said=reasons(run.verdict.failures),
    )
    print(f"  {found}", file=sys.stderr, flush=True)
    return found


def renewed(names: Sequence[str], bench: Workbench) -> Iterator[Found]:
    """Yield what becomes of the models of these names."""
    only = "only" in names
    for model in chain(ill(bench.folder), given(bench)):
        if model.name in names or len(names) == only:
            yield examined(model, only=only)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for one in renewed(sys.argv[1:], Workbench(Path(folder), models_folder())):
            print(json.dumps(asdict(one)))
