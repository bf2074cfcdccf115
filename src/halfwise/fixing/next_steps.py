"""What to do after a `fix`: commands that can be pasted."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from halfwise.case import Case
from halfwise.declarations import spelt
from halfwise.emulation.tf32 import TENSOR_CORE_OPS
from halfwise.errors import CaseError
from halfwise.fixing.fixed import Fixed
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import bodies
from halfwise.options.options import Request
from halfwise.records import CauseKind, Engines, KeptNode, Plan, Profile, RungEnd, Verdict, Worth
from halfwise.reporting.curve import choosing
from halfwise.reporting.ending import allow_more
from halfwise.reporting.notes import lint_steps
from halfwise.reporting.worth import cheaper, unless_faster
from halfwise.store import MODEL_FILE, engine_file
from halfwise.tensorrt.profiles import profiles_from_data
from halfwise.tensorrt.quantised import builder_flags
from halfwise.tensorrt.recipes.commands import shape_options
from halfwise.tensorrt.recipes.recipe import planned_nodes
from halfwise.tensorrt.trtexec.notation import unsayable
from halfwise.tensorrt.versions import FIRST_WITH, WEAK_ONLY, since, text_of
from halfwise.wording import capital, count, listed, verb

_OLDER = f"TensorRT {WEAK_ONLY[0]}.x"


def sample_profiles(case: Case) -> tuple[Profile, ...]:
    """Return a profile that holds all samples of a case.

    None if no shape can vary, or if no profile can hold them.
    """
    try:
        return profiles_from_data(case.network, case.calibration + case.heldout)
    except CaseError:
        return ()


def building_commands(
    case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None
) -> tuple[str, str]:
    """Return what builds an engine from a passed run, for TensorRT 9 and later and for 8.x.

    A command ends its line and is quoted for a shell.

    Args:
        case: The case.
        plan: What is FP32.
        profiles: Of the samples; none for fixed shapes.
        out: The run folder; None if nothing was written.
    """
    return _strong(plan, profiles, out), _weak(case, plan, profiles, out)


def _strong(plan: Plan, profiles: Sequence[Profile], out: Path | None) -> str:
    model = out / MODEL_FILE if out else Path(MODEL_FILE)
    words = ["trtexec", f"--onnx={model}", "--stronglyTyped"]
    words += ["--noTF32"] if any(map(_needs_fp32, plan.keep)) else []
    if out and not _sayable(profiles):
        words = ["halfwise", "export", str(out), "--as", "python", "-o", str(out / "strong")]
    else:
        words += [option for profile in profiles[:1] for option in shape_options(profile)]
        words.append(f"--saveEngine={model.with_suffix('.engine')}")
    return f"Build it with TensorRT {since('strong typing')} or later: {shlex.join(words)}"


def _needs_fp32(kept: KeptNode) -> bool:
    return kept.op in TENSOR_CORE_OPS and kept.precision == "fp32"


def _weak(case: Case, plan: Plan, profiles: Sequence[Profile], out: Path | None) -> str:
    if plan.low == "bf16":
        return f"{_OLDER} has no BF16, and neither have GPUs before compute capability 8.0."
    older = f"{_OLDER} ignores the Casts in the model"
    names = planned_nodes(plan)
    if any(bodies(node) for node in case.network.nodes() if node_name(node) in names):
        return f"{older}, and constraints do not reach layers in the bodies of kept nodes."
    path = case.network.path
    if not (names or plan.repairs or plan.int8):
        return f"{older}, and nothing is kept: {_plain(case.network, plan, profiles, out)}"
    own = f"the {'repaired ' * bool(plan.repairs)}FP32 model"
    own += " and its Q/DQ pairs" * bool(plan.int8)
    parts = [own] if plan.repairs or plan.int8 else []
    which = "kept nodes" if plan.keep else "what moves data in FP32"
    what = " with ".join([*parts, *([f"layer constraints on {which}"] if names else [])])
    if out is None or path is None:
        return f"{older}; `halfwise export` writes {what}."
    trtexec = _sayable(profiles) and not any(map(unsayable, names)) and "*" not in names
    kind = "trtexec" if trtexec else "python"
    # A folder: if nodes have no names of their own, a model with names is written there.
    words = ["halfwise", "export", str(out), "--as", kind, "--trt-version", text_of(WEAK_ONLY)]
    words += ["-o", str(out / f"tensorrt-{text_of(WEAK_ONLY)}")]
    return f"{older}; {'build' if parts else 'use'} {what}: {shlex.join(words)}"


def _plain(network: Network, plan: Plan, profiles: Sequence[Profile], out: Path | None) -> str:
    """Return what builds the model as given if weak typing needs no constraint."""
    flags = [f"--{flag}" for flag in (*builder_flags(network), plan.low)]
    if out is None or network.path is None or not _sayable(profiles):
        return f"build the original model with {' and '.join(flags)}."
    words = ["trtexec", f"--onnx={network.path}", *flags]
    words += [option for profile in profiles[:1] for option in shape_options(profile)]
    return shlex.join([*words, f"--saveEngine={out / f'tensorrt-{text_of(WEAK_ONLY)}.engine'}"])


def _sayable(profiles: Sequence[Profile]) -> bool:
    """Return whether trtexec accepts the names of all inputs."""
    return not any(unsayable(name) for p in profiles for name in (*p.shapes, *p.values))


_DIAGNOSED = (
    *("preprocess", "labels", "seed", "allow_random", "max_abs", "rel_max", "snr_db", "cosine"),
    *("agreement", "metric", "metric_drop", "to", "accumulate", "device", "ort_library"),
    *("target", "trt_python", "trt_command", "trt_worker", "typing", "min_shapes", "opt_shapes"),
    *("max_shapes", "workspace", "optimization_level", "tactic_sources", "plugin", "no_previews"),
)
"""Options of `fix` with the same meaning in `diagnose`."""
_SEVERAL = ("min_shapes", "opt_shapes", "max_shapes", "plugin", "ort_library")
_GONE: Mapping[RungEnd, str] = {
    "lost": "The worker was lost, so nothing is known of {name} engines: once it answers,",
    "unfetched": "The {name} engine that passed could not be fetched:",
}
_OTHER_BUILDS = (
    "another --optimization-level (0 to 5), other --tactic-sources, or another TensorRT version"
)


def diagnose_command(case: Case, request: Request, out: Path | None, worker: str = "") -> str:
    """Return the `halfwise diagnose` command for the same case and worker, quoted for a shell.

    `worker` names one of several workers.
    """
    named = {"trt_worker": worker} if worker else {}
    options = {**request.given, **named}
    given = request.data.inputs
    inputs = str(given) if isinstance(given, str | Path) else "DATA"
    model = str(case.network.path) if case.network.path is not None else "MODEL"
    words = ["halfwise", "diagnose", model, "--inputs", inputs]
    for name in _DIAGNOSED:
        if name in options:
            words += _option(name, options[name])
    folder = Path("DIAGNOSIS") if out is None else out.with_name(f"{out.name}.diagnosis")
    return shlex.join([*words, "-o", str(folder)])


def delivered_next(out: Path | None, devices: Sequence[Engines] = ()) -> tuple[str, ...]:
    """Return what to do with the engine in the run folder `out`; None if there is none.

    `devices` are those of a run with several.
    """
    if out is None:
        return ()
    folder, engine = (shlex.quote(str(p)) for p in (out, out / engine_file()))
    lines = [f"The engine is {engine}; it runs on this GPU model with this TensorRT version."]
    export = folder
    if len(devices) > 1:
        names = [e.worker.name for e in devices]
        files = [shlex.quote(str(out / engine_file(e.shares or e.worker.name))) for e in devices]
        told = listed([f"{file} ({name})" for file, name in zip(files, names, strict=True)])
        lines = [f"The engines are {told}; each runs on its GPU model and TensorRT version."]
        export = f"{folder} --trt-worker {names[0]}"
    return (
        *lines,
        f"To build and judge it on another: halfwise verify {folder} --target tensorrt --inputs "
        "DATA",
        "To build it without halfwise (python, cpp, polygraphy and json are other forms): "
        f"halfwise export {export} --as trtexec",
    )


def lower_next(engines: Engines, case: Case) -> tuple[str, ...]:
    """Return what may lead to an engine of the low format if none passed."""
    low = engines.rungs[-1] if engines.rungs else None
    if low is None or low.end in ("delivered", "slower", "not-preferred", "no-part"):
        return ()
    kinds: tuple[CauseKind, ...] = tuple(cause.kind for cause in engines.causes)
    name = low.rung.upper()
    lines = []
    if low.end in _GONE:
        lines.append(
            f"{_GONE[low.end].format(name=name)} run the command again with another -o; "
            "--start-from this folder skips the search without engines."
        )
    if {"no-engine", "refused"} & set(kinds):
        model = case.network.path
        words = ["halfwise", "modernize", str(model or "MODEL")]
        words += ["-o", str(model.with_suffix(".modern.onnx") if model else "MODERN.onnx")]
        lines.append(
            f"For an {name} engine, try a model whose norms are one node each: {shlex.join(words)}"
        )
    if "ignored" in kinds and engines.typing == "weak":
        lines.append(
            "The builder ignores constraints: from TensorRT "
            f"{text_of(FIRST_WITH['strong typing by default'])} on, use --typing strong, where the "
            "Casts in the model decide."
        )
    if {"no-engine", "refused", "not-run", "kernel"} & set(kinds):
        lines.append(f"For an {name} engine, try {_OTHER_BUILDS}.")
    if "kernel" in kinds:
        lines.append("If kernels may accumulate in FP16, --accumulate fp16 emulates that.")
    shown = {number for cause in engines.causes for number in cause.builds}
    if "unknown" in kinds and any(b.config.tf32 for b in engines.builds if b.number in shown):
        lines.append("Kept nodes may compute in TF32: leave --tf32 out.")
    unclear = {"no-effect", "precision", "unknown", "ignored"} & set(kinds)
    spared = any(s.kind != "no-tf32" for s in engines.spared)
    if not spared and (unclear or not (kinds or low.end in _GONE)):
        lines.append("Let the search use more builds: --max-builds N.")
    return tuple(lines)


def _option(name: str, value: str) -> list[str]:
    option = spelt(name)
    if value == "True":
        return [option]
    return [
        word for v in (value.split(", ") if name in _SEVERAL else [value]) for word in (option, v)
    ]


def next_steps(
    verdict: Verdict,
    case: Case,
    fixed: Fixed,
    profiles: tuple[Profile, ...],
    out: Path | None,
    devices: Sequence[Engines],
    worth: Worth | None,
) -> tuple[str, ...]:
    """Return what to do after a `fix`, in the order of the report.

    Args:
        verdict: The final one, with its reasons for failure.
        case: The case.
        fixed: Result of the run.
        profiles: Of the samples; none for fixed shapes.
        out: The run folder; None if nothing was written.
        devices: Results of real engines per device; empty without engines.
        worth: Worth of the plan, if known.
    """
    engines = devices[0] if devices else None
    lower = () if engines is None else lower_next(engines, case)
    other = tuple(choosing(fixed.curve, out, verdict, case.criterion, devices))
    if verdict.required_worth is not None:
        steps = (*other, *lower, *_after_cost(verdict.required_worth, fixed, worth, engines))
    elif not verdict.passed:
        steps = (*other, *lower, *_after_failure(verdict, case, fixed, devices))
    elif verdict.level == "engine":
        steps = (*delivered_next(out, devices), *other, *lower)
    else:
        strong, weak = building_commands(case, fixed.plan, profiles, out)
        dear = unless_faster(worth)
        # A plan that gains nothing is not worth building where a cheaper one is offered.
        steps = other if other and dear else (*other, *dear, strong, _proving(out), weak)
    return (*steps, *lint_steps(case.notes))


def _proving(out: Path | None) -> str:
    if out is None:
        return "This verdict is emulated; judge the engine itself with --target tensorrt."
    run = shlex.quote(str(out))
    return f"Judge the engine itself: halfwise verify {run} --target tensorrt --inputs DATA"


def _after_failure(
    verdict: Verdict, case: Case, fixed: Fixed, devices: Sequence[Engines]
) -> tuple[str, ...]:
    lines = list(_rules_in_the_way(verdict, fixed))
    if fixed.search.exhausted:
        lines.append(f"{capital(allow_more(fixed.search))}.")
    if not verdict.unseen:
        copies = any(note.kind == "copies" for note in case.notes)
        which = "samples that differ from one another" if copies else "more samples"
        lines.append(f"Give {which}, or a second set with --heldout DATA.")
    lines += after_untested(verdict)
    if not (case.real or fixed.planner.settings.allow_random):
        lines.append("Give real inputs, or accept a verdict without them: --allow-random.")
    ran = not devices or any(tried.ran for tried in devices[0].rungs)
    if alone := runs_of_their_own(devices):
        lines.append(alone)
    elif ran and _is_out_of_tolerance(verdict):
        lines.append(
            "Check that the tolerance fits the task: --rel-max, --snr-db, or a task metric "
            "(--metric)."
        )
    lines.append("The run folder holds the best model found.")
    return tuple(lines)


def runs_of_their_own(devices: Sequence[Engines]) -> str:
    """Return a sentence on what to do if one plan is right on some devices only; else ""."""
    passed = [e.verdict is not None and e.verdict.passed for e in devices]
    failing = [e.worker.name for e, right in zip(devices, passed, strict=True) if not right]
    if not any(passed) or not failing:
        return ""
    each = verb(len(failing), "a run of its own", "a run of its own for each")
    options = ", or ".join(f"--trt-worker {shlex.quote(name)}" for name in failing)
    return (
        f"The plan is right on the other devices and wrong on {listed(failing)}, which may need "
        f"{each}: only {options}."
    )


def after_untested(verdict: Verdict) -> tuple[str, ...]:
    """Return what to do if something was not tested and may be the only fault."""
    if verdict.passed or not verdict.unjudged:
        return ()
    idle = [found.around or found.name for found in verdict.unjudged if found.kind == "never-ran"]
    options = " ".join(f"--keep {shlex.quote(name)}" for name in dict.fromkeys(idle))
    whose = verb(len(set(idle)), "the node whose body", "the nodes whose bodies")
    keep = f", or keep {whose} never ran ({options})" if idle else ""
    return (f"Give samples that test what is not judged{keep}, or accept that: --allow-unjudged.",)


def _after_cost(
    required: float, fixed: Fixed, worth: Worth | None, engines: Engines | None
) -> Iterator[str]:
    # Engines that refuted all plans but FP32 outweigh predictions about plans.
    if engines is None or not engines.full:
        yield from cheaper(worth, required)
    if fixed.search.exhausted and required >= 1 and fixed.plan.keep:
        yield (
            "The search did not finish; to find a plan that keeps less, "
            f"{allow_more(fixed.search)}."
        )


def _rules_in_the_way(verdict: Verdict, fixed: Fixed) -> Iterator[str]:
    """Yield which of the user's rules affected a plan whose outputs fail."""
    if not (_is_out_of_tolerance(verdict) or any(o.nonfinite for o in verdict.outputs.values())):
        return
    if fixed.planner.settings.keep_above is not None:
        yield "Leave --keep-above out: it skips the search and checks no output."
    if fixed.plan.lowered:
        yield f"Leave --lower out: it forces {count(len(fixed.plan.lowered), 'node')} low."


def _is_out_of_tolerance(verdict: Verdict) -> bool:
    """Return whether another tolerance could accept the outputs: none accepts new NaN."""
    if any(o.nonfinite for o in verdict.outputs.values()):
        return False
    if verdict.metric is not None:
        return not verdict.metric.passed
    return not all(o.passed for o in verdict.outputs.values())
