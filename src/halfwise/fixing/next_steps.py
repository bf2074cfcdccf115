"""What to do after a `fix`."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from halfwise.case import Case
from halfwise.declarations import Inputs, spelt
from halfwise.emulation.typed import TENSOR_CORE_OPS
from halfwise.errors import CaseError
from halfwise.fixing.fixed import Fixed
from halfwise.graph.model import Network, is_standard
from halfwise.graph.types import is_of_onnx_runtime
from halfwise.options.engines import TENSORRT
from halfwise.options.options import Request
from halfwise.records import (
    CauseKind,
    Engines,
    Held,
    NodeName,
    Note,
    Plan,
    Profile,
    Step,
    Verdict,
    Worth,
    replace,
)
from halfwise.store import MODEL_FILE, STATIC_FILE, engine_file
from halfwise.tensorrt.ports import profiles_from_data
from halfwise.tensorrt.trtexec import shape_options, unsayable
from halfwise.tensorrt.versions import FIRST_WITH, since, text_of
from halfwise.wording import argument, command, listed

_JUDGED = (
    *("preprocess", "labels", "allow_random", "allow_unjudged", "max_abs"),
    "plugin_outputs",
    *("rel_max", "snr_db", "cosine", "agreement", "metric", "metric_drop", "strict", "accumulate"),
    *("device", "ort_library", "trt_command", "trt_worker"),
)
"""Options of `fix` with the same meaning in `verify` and `diagnose`."""
_SEARCHED = (
    *("to", "target", "typing", "min_shapes", "opt_shapes", "max_shapes", "workspace"),
    *("optimization_level", "tactic_sources", "plugin"),
)
"""The others with the same meaning in `diagnose`."""
_COMPARED = ("preprocess", "allow_random", "accumulate", "device", "ort_library")
_REPEATED = ("preprocess", "labels", "allow_random", "device", "ort_library")
"""Options of `fix` that a `verify` of its run needs again."""
_SEVERAL = (
    "target",
    "min_shapes",
    "opt_shapes",
    "max_shapes",
    "plugin",
    "ort_library",
    "keep",
    "keep_op",
    "lower",
)


def diagnose_step(case: Case, request: Request, out: Path | None, worker: str = "") -> Step:
    """Return the `halfwise diagnose` of the same case and worker.

    `worker` names one of several workers.
    """
    options = request.given | ({"trt_worker": worker} if worker else {})
    engines = {"target": TENSORRT} if TENSORRT in options.pop("target", "") else {}
    options |= engines
    return _on_same_case("diagnose", case, request, options, out, "diagnosis")


def fix_step(case: Case, request: Request, out: Path | None, quantised: Path | None = None) -> Step:
    """Return the `halfwise fix` of the same case as a diagnosis; of a quantised model of it."""
    step = _on_same_case("fix", case, request, request.given, out, "fixed", quantised)
    return step if quantised is None else replace(step, kind="fix-quantised")


Again = Literal["search-on", "keep-less", "ask-strict"]


def _again(kind: Again, case: Case, request: Request, out: Path | None) -> Step:
    """Return the `halfwise fix` with the options of this run that goes on, or is strict."""
    strict, run = kind == "ask-strict", Path("RUN") if out is None else out
    replaced = ("metric", "metric_drop") if strict else ("start_from",)
    options = {name: text for name, text in request.given.items() if name not in replaced}
    words = [_model(case), *_given(request.data.inputs, options, options)]
    words += ["--strict"] if strict else ["--start-from", argument(run)]
    folder = run.with_name(f"{run.name}.{'strict' if strict else 'on'}")
    return Step(kind=kind, command=("halfwise", "fix", *words, "-o", argument(folder)))


def _on_same_case(
    command: Literal["diagnose", "fix"],
    case: Case,
    request: Request,
    options: Mapping[str, str],
    out: Path | None,
    suffix: str,
    start: Path | None = None,
) -> Step:
    """Return a command on the same case, into a folder beside that of this run."""
    words = [_model(case), *_given(request.data.inputs, options, (*_JUDGED, *_SEARCHED))]
    words += [] if start is None else ["--start-from", argument(start)]
    folder = Path(suffix.upper()) if out is None else out.with_name(f"{out.name}.{suffix}")
    return Step(kind=command, command=("halfwise", command, *words, "-o", argument(folder)))


def int8_step(case: Case, request: Request, out: Path | None) -> Step:
    """Return the `halfwise fix` of the same case to INT8, for files without pairs to leave out."""
    return fix_step(case, replace(request, given=request.given | {"to": "int8"}), out)


def after_verify(
    case: Case,
    request: Request,
    candidate: Path,
    *,
    passed: bool,
    held: Sequence[Held] = (),
    quantised: bool = False,
    integers: bool = False,
    loads: bool = True,
    instead: tuple[Step, ...] | None = None,
) -> tuple[Step, ...]:
    """Return what to do after an emulated `verify` of a model file.

    Args:
        case: The case.
        request: The options.
        candidate: The file.
        passed: Whether it passed.
        held: What became of it on targets.
        quantised: Whether it has pairs that can be left out.
        integers: Whether it is quantised without such pairs, dynamically.
        loads: Whether its element types agree.
        instead: See `unbuildable`.
    """
    if passed and request.settings.targets:
        return ()
    if passed:
        proof = _proof(case, candidate, request.data.inputs, request.given, {"heldout": "DATA"})
        return (proof,) if instead is None else instead
    if wrong := {one.outcome for one in held} - {"same", "built"}:
        # What the targets sum in decides, and no other file helps where FP32 is wrong.
        given = {name: text for name, text in request.given.items() if name != "accumulate"}
        return (fix_step(case, replace(request, given=given), None),) * ("fragile" in wrong)
    comparing = [_model(case), *_given(request.data.inputs, request.given, _COMPARED)]
    comparing += ["--b", f"emulation:{candidate}"]
    looking = Step(kind="compare", command=("halfwise", "compare", *comparing))
    if not loads:
        looking = Step(kind="lint", command=("halfwise", "lint", argument(candidate)))
    return (
        looking,
        int8_step(case, request, None)
        if integers and not quantised
        else fix_step(case, request, None, candidate if quantised else None),
    )


def _given(
    inputs: Inputs | None, options: Mapping[str, str], names: Iterable[str]
) -> Iterator[str]:
    """Yield the inputs, and those of the options that have a name among `names`."""
    yield from ("--inputs", argument(inputs) if isinstance(inputs, str | Path) else "DATA")
    for name in names:
        yield from _option(name, options[name]) if name in options else ()


def _model(case: Case) -> str:
    return "MODEL" if case.network.path is None else argument(case.network.path)


def delivered_next(
    out: Path | None, request: Request, devices: Sequence[Engines] = ()
) -> tuple[Step, ...]:
    """Return what to do with the engine in the run folder `out`; None if there is none.

    `devices` are those of a run with several.
    """
    if out is None:
        return ()
    files, export = {"": str(out / engine_file())}, ["halfwise", "export", argument(out)]
    if len(devices) > 1:
        files = {e.worker.name: str(out / engine_file(e.worker.name)) for e in devices}
        export += ["--trt-worker", devices[0].worker.name]
    named = {device: command(Path(file)) for device, file in files.items()}
    told = ", ".join(f"{file} ({device})" if device else file for device, file in named.items())
    data, options = request.data, _heldout(request)
    # Of the inputs of the run, `verify` judges only those that it held out.
    words = [argument(out), *_given(data.heldout or data.inputs, options, _REPEATED)]
    words += _option("metric", options["metric"]) if ":" in options.get("metric", "") else []
    return (
        Step(kind="engines", numbers={"engines": len(files)}, text=told),
        Step(kind="verify-elsewhere", command=("halfwise", "verify", *words, *_ENGINE)),
        Step(kind="export", command=(*export, "--as", "trtexec")),
    )


def _heldout(request: Request) -> dict[str, str]:
    """Return the options, with the labels of the held-out samples where these were given."""
    own = request.data.heldout is not None
    labels = request.given.get("heldout_labels") if own else None
    return request.given if labels is None else {**request.given, "labels": labels}


_ENGINE = ("--target", "tensorrt")


def lower_next(engines: Engines) -> tuple[Step, ...]:
    """Return what may lead to an engine of the low format if none passed."""
    low = engines.rungs[-1] if engines.rungs else None
    if low is None or low.end in ("delivered", "slower"):
        return ()
    kinds = {cause.kind for cause in engines.causes}
    rung = {"rung": low.rung.upper()}
    shown = {number for cause in engines.causes for number in cause.builds}
    in_tf32 = any(b.config.tf32 for b in engines.builds if b.number in shown)
    told = ("lost", "unfetched", "unbuildable", "not-run")
    unclear = kinds & _UNCLEAR or not (kinds or low.end in told)
    unbuilt = "refused" in kinds or low.end == "unbuildable"
    other_builds = Step(kind="other-builds", names=rung)
    since = {"since": text_of(FIRST_WITH["strong typing by default"])}
    return _applying(
        (
            "ignored" in kinds and engines.typing == "weak",
            Step(kind="typing-strong", names=since),
        ),
        (unbuilt, Step(kind="reexport", names=rung)),
        (unbuilt or low.end == "not-run", other_builds),
        ("unknown" in kinds and in_tf32, Step(kind="no-tf32")),
        (unclear and "interrupted" not in engines.spared, Step(kind="more-builds")),
    )


def _applying(*steps: tuple[bool, Step]) -> tuple[Step, ...]:
    """Return the steps that apply, in their order."""
    return tuple(step for applies, step in steps if applies)


_UNCLEAR: frozenset[CauseKind] = frozenset(("precision", "unknown", "ignored"))


def _option(name: str, value: str) -> list[str]:
    if value == "True":
        return spelt(name).split()
    values = value.split(", ") if name in _SEVERAL else [value]
    return [word for one in values for word in spelt(name, one).split(maxsplit=1)]


def next_steps(
    verdict: Verdict,
    case: Case,
    request: Request,
    fixed: Fixed,
    profiles: tuple[Profile, ...],
    out: Path | None,
    devices: Sequence[Engines],
    worth: Worth | None,
) -> tuple[Step, ...]:
    """Return what to do after a `fix`, in the order of the report.

    Args:
        verdict: The final one, with its reasons for failure.
        case: The case.
        request: The options.
        fixed: Result of the run.
        profiles: Of the samples; none for fixed shapes.
        out: The run folder; None if nothing was written.
        devices: Results of real engines per device; empty without engines.
        worth: Worth of the plan, if known.
    """
    lower = lower_next(devices[0]) if devices else ()
    unfused = unbuildable(case.whole, case.notes)
    if not verdict.passed:
        # Commands first: one screen may have no room for more.
        steps = (*lower, *_after_failure(verdict, case, request, fixed, out, devices))
        steps += () if devices else unfused or ()
    elif verdict.level == "engine":
        steps = (*delivered_next(out, request, devices), *lower)
    else:
        dear = worth is not None and worth.times_fp32 >= 1
        stopped = (dear or "interrupt" in fixed.search.ended_by) and bool(fixed.plan.keep)
        futile = any(step.kind == "futile" for step in fixed.search.remarks)
        steps = _applying(
            (stopped and fixed.search.exhausted, _again("keep-less", case, request, out)),
            (futile, Step(kind="check-tolerance")),
            (_keeps_all(fixed.plan), diagnose_step(case, request, out)),
        )
        if request.settings.targets and out is not None:
            steps += (Step(kind="deliver", text=command(_delivered(case, out))),)
        elif unfused is not None:
            steps += unfused
        else:
            strong = building(case, fixed.plan, profiles, out)
            proof = _proving(case, request, out)
            steps += _applying((True, strong), (dear, Step(kind="use-fp32")), (True, proof))
    if case.network.path is None or all(
        note.kind not in ("linted", "unbuilt", "late", "static", "frozen") for note in case.notes
    ):
        return steps
    versions = [str(v) for note in case.notes if (v := note.facts.get("version"))]
    asked = [word for version in versions[:1] for word in ("--trt-version", version)]
    lint = ("halfwise", "lint", argument(case.network.path), *asked)
    return (*steps, Step(kind="lint", command=lint))


def unbuildable(network: Network, notes: Iterable[Note]) -> tuple[Step, ...] | None:
    """Return what to do with a model that no TensorRT builds, by its notes; None if one may."""
    if any(note.kind == "unbuilt" for note in notes):
        return ()
    own = dict.fromkeys(n.op_type for n in network.all_nodes() if is_of_onnx_runtime(n))
    return (Step(kind="unfused", names={"operators": listed(list(own), 3)}),) if own else None


def _keeps_all(plan: Plan) -> bool:
    """Return whether all compute nodes stay in FP32, some of them for an unknown reason."""
    unexplained = any(kept.kept_by == "search" and kept.guard is None for kept in plan.keep)
    return len(plan.keep) >= plan.candidates and unexplained


def _proving(case: Case, request: Request, out: Path | None) -> Step:
    """Return how to prove the engine of a passed run, on samples that it has not seen."""
    if out is None:
        return Step(kind="prove")
    options, names = _heldout(request), {"heldout": "DATA"}
    if request.data.heldout is None:
        names = {"unseen": "DATA"}
        options = {**options, "labels": "LABELS"} if "labels" in options else options
    return _proof(case, _delivered(case, out), request.data.heldout, options, names)


def _proof(
    case: Case,
    file: Path,
    inputs: Inputs | None,
    options: Mapping[str, str],
    names: Mapping[str, str],
) -> Step:
    """Return the `halfwise verify` that builds a file and judges its engine."""
    words = [_model(case), argument(file), *_given(inputs, options, _JUDGED), *_ENGINE]
    return Step(kind="prove", names=names, command=("halfwise", "verify", *words))


def _after_failure(
    verdict: Verdict,
    case: Case,
    request: Request,
    fixed: Fixed,
    out: Path | None,
    devices: Sequence[Engines],
) -> Iterator[Step]:
    """Yield what to do after a failure, commands first; none where only real inputs help."""
    search, lowered = fixed.search, fixed.plan.lowered
    notes = {note.kind for note in case.notes}
    kinds = {failure.kind for failure in verdict.failures}
    if kinds != {"not-real"}:
        within = verdict.strict is not None and verdict.strict <= 1
        strictly = within and bool(case.criterion.recognised)
        helpless = any(run.fp32 is False for run in verdict.as_file)
        unknown = verdict.judged and not (helpless or search.exhausted or strictly)
        yield from _applying(
            (search.exhausted, _again("search-on", case, request, out)),
            (strictly, _again("ask-strict", case, request, out)),
            (unknown, diagnose_step(case, request, out)),
        )
    broken = any(output.nonfinite for output in verdict.outputs.values())
    inexact = not broken and bool(kinds & _OF_TOLERANCE)
    harmed, numbers = _harmed(verdict, fixed), {"lowered": len(lowered)}
    alike = {"alike": "yes"} if "copies" in notes else {}
    yield from _applying(
        (
            bool(lowered) and (broken or inexact),
            Step(kind="leave-lower", numbers=numbers, items=harmed),
        ),
        (not verdict.unseen, Step(kind="more-samples", names=alike)),
    )
    kept = frozenset(k.node for k in fixed.plan.keep)
    yield from after_untested(verdict, kept, split="split" in notes)
    random = not (case.real or fixed.space.variant.settings.allow_random)
    ran = not devices or any(row.verdict is not None for row in devices[0].results)
    batch = verdict.batch
    in_batches = batch is not None and all("batch" in one.under for one in verdict.failures)
    yield from _applying(
        (random, Step(kind="real-inputs")),
        (ran and inexact, Step(kind="check-tolerance")),
        (in_batches, Step(kind="batches", numbers={"size": batch.size if batch else 0})),
        (fixed.space.chosen is None, Step(kind="best-model")),
    )


def _harmed(verdict: Verdict, fixed: Fixed) -> tuple[NodeName, ...]:
    """Return the lowered nodes that guards suspect, else those that bring NaN or infinity."""
    suspected = [n for g in fixed.guards for n in g.nodes if n in fixed.plan.lowered]
    inside = (t.producer for t in verdict.intermediate_nonfinite if not t.harmless and t.producer)
    return tuple(dict.fromkeys(suspected or inside))


def after_untested(
    verdict: Verdict, kept: frozenset[NodeName] = frozenset(), *, split: bool = False
) -> tuple[Step, ...]:
    """Return what to do if something was not tested and may be the only fault.

    To keep a node helps only if it is not among those `kept` already. `split`: whether the inputs
    were split into samples to search on and held-out ones.
    """
    lacking = [dict(failure.numbers) for failure in verdict.failures if failure.kind == "few"]
    for numbers in lacking if split else ():
        # The search takes a quarter, rounded down.
        numbers["total"] = (4 * int(numbers["needed"]) - 1) // 3
    few = tuple(Step(kind="enough-samples", numbers=numbers) for numbers in lacking)
    if verdict.passed or not verdict.unjudged:
        return few
    idle = [part.around or part.name for part in verdict.unjudged if part.kind == "never-ran"]
    nodes = tuple(name for name in dict.fromkeys(idle) if name not in kept)
    options = {"options": " ".join(f"--keep {shlex.quote(name)}" for name in nodes)}
    absent = any(part.kind == "absent" for part in verdict.unjudged)
    flags = dict.fromkeys(("absent",) * absent + ("split",) * split, "")
    names = {**(options if nodes else {}), **flags}
    return (*few, Step(kind="untested", names=names, items=nodes))


_OF_TOLERANCE = frozenset(("agreement", "tolerance", "metric", "part", "rate"))
"""Failures that another tolerance could accept, also of the file as it runs: not beside new NaN."""


def sample_profiles(case: Case) -> tuple[Profile, ...]:
    """Return a profile that holds all samples of a case.

    None if no shape can vary, or if no profile can hold them.
    """
    try:
        profiles = profiles_from_data(case.network, case.calibration + case.heldout)
    except CaseError:
        return ()
    own = ({n: r for n, r in p.shapes.items() if n not in case.supplied} for p in profiles)
    return tuple(replace(p, shapes=shapes) for p, shapes in zip(profiles, own, strict=True))


def _delivered(case: Case, out: Path) -> Path:
    return out / (STATIC_FILE if is_static(case) else MODEL_FILE)


def is_static(case: Case) -> bool:
    """Return whether TensorRT builds the model only with the samples' shapes fixed."""
    return any(note.kind == "static" for note in case.notes)


def building(case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None) -> Step:
    """Return what builds an engine from a passed run, for TensorRT 9 and later.

    Args:
        case: The case.
        plan: What is FP32.
        profiles: Of the samples; none for fixed shapes.
        out: The run folder; None if nothing was written.
    """
    if out is None:
        return Step(kind="write")
    model, profiles = _delivered(case, out), () if is_static(case) else profiles
    if any(unsayable(name) for p in profiles for name in (*p.shapes, *p.values)):
        # trtexec does not accept the name of an input.
        words = ["halfwise", "export", argument(out), "--as", "python"]
        words += ["-o", argument(out / "strong")]
    else:
        fp32 = any(n.op in TENSOR_CORE_OPS and n.precision == "fp32" for n in plan.keep)
        words = ["trtexec", f"--onnx={model}", "--stronglyTyped", *["--noTF32"] * fp32]
        words += [option for profile in profiles[:1] for option in shape_options(profile)]
        words += [f"--saveEngine={model.with_suffix('.engine')}"]
    lacking_here = () if case.aside is None else case.aside.lacking
    custom = (n.op_type for n in case.whole.graph.all_nodes() if not is_standard(n))
    foreign = dict.fromkeys((*lacking_here, *custom))
    plugins = {"plugins": listed(list(foreign), 3)} if foreign else {}
    late = next((str(n.facts["since"]) for n in case.notes if n.kind == "late"), None)
    names = {"since": late or since("strong typing"), **plugins}
    return Step(kind="build", names=names, command=tuple(words))
