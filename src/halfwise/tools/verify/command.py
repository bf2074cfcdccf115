"""`verify`: judge a candidate against the FP32 model."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

import onnx_ir as ir

from halfwise.case import CPU, Case, Runtime, Settings
from halfwise.declarations import BuildingOptions, Inputs, Options, WorkerOptions
from halfwise.emulation.budget import sized
from halfwise.emulation.ort import Session
from halfwise.errors import (
    CaseError,
    GraphRefused,
    HalfwiseError,
    RunFailed,
    UsageError,
)
from halfwise.fixing.command import judge_sizes
from halfwise.fixing.filed import judged_as_file
from halfwise.fixing.int8.blame import blame
from halfwise.fixing.next_steps import after_verify
from halfwise.fixing.outcome import candidate_worth, verify_run, with_unjudged
from halfwise.fixing.repair.making import further, repaired_at, with_readable
from halfwise.fixing.repair.proof import allowed, is_same, prove
from halfwise.fixing.result import Result
from halfwise.fixing.stages import Stages
from halfwise.formats import LOW_FORMATS
from halfwise.graph.anchors import folded
from halfwise.graph.aside import resolve, set_aside
from halfwise.graph.bodies import alike, bodies_in, first_difference
from halfwise.graph.casts import is_low_custom, low_type
from halfwise.graph.conversion import raise_opset
from halfwise.graph.excluding import excluding
from halfwise.graph.loading import REFUSALS
from halfwise.graph.model import Flaw, Network, graphs_of, node_name, values_of
from halfwise.graph.qoperators import as_pairs
from halfwise.graph.quantised import census, quantised_nodes, quantising
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LOW_TYPES
from halfwise.inputs import fit_recorded, holds_outputs, load_recorded
from halfwise.judging.deciding import worst_first
from halfwise.judging.judge import judge, judge_outputs
from halfwise.judging.reference import (
    check,
    check_types,
    demand_same_inputs,
    frozen_named,
    inspected_reference,
)
from halfwise.metrics import Outputs, criterion_hints
from halfwise.observing.reference import observe_network
from halfwise.options.engines import TENSORRT, Target, engine_target, split
from halfwise.options.loading import load_asked, load_model, nodes_of, runnable, tell
from halfwise.options.metric import without_outputs
from halfwise.options.options import Model, Request, bounded, understand
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    Blame,
    Fact,
    Failure,
    Note,
    Observations,
    Proof,
    Remade,
    Run,
    Step,
    TensorName,
    Verdict,
)
from halfwise.reporting.remarks import with_failures
from halfwise.store import free_folder, new_folder, refuse_run
from halfwise.targets.runners import running
from halfwise.tensorrt.layers import demand_engine, is_engine
from halfwise.tools.verify.baseline import Earlier, beside, demand_comparable, earlier
from halfwise.tools.verify.engine import verify_built, verify_engine
from halfwise.wording import FEW, listed, quoted


def remade(
    case: Case, candidate: Network, *, runtime: Runtime, watcher: Watcher | None = None
) -> Remade | None:
    """Redo a candidate's repairs; None if it needs none.

    One that names none but differs in more than types gives no verdict: it may be any conversion.

    Leading repairs that the original lists in the same order are already in it.

    Args:
        case: The original and the samples for the proof.
        candidate: As in its file, in low types.
        runtime: Where both run in FP32.
        watcher: Receives the stage `proof` if there is one.

    Raises:
        CaseError: the candidate's metadata cannot be read.
    """
    network, _ = with_readable(case.network)  # fix leaves the same out of its files
    repairs = further(candidate.model, network.model)
    if not repairs:
        differs = _unnamed(network, candidate)
        return Remade(repairs=(), differs=differs) if differs else None
    (watcher or Silent()).stage("proof")
    try:
        with sized("proof", nodes_of(network)):
            network, made = repaired_at(network, repairs, candidate.opset)
            unseen = case.calibration.select(())
            proof = prove(network, made, case.calibration, unseen, runtime=runtime)
    except (CaseError, *REFUSALS) as error:
        why = error.message if isinstance(error, CaseError) else f"{type(error).__name__}: {error}"
        return Remade(repairs=repairs, failures=(Failure(kind="unmade", names={"why": why}),))
    floats = excluding(candidate, quantised_nodes(candidate), made)
    failures = tuple(_failures(first_difference(made, floats), proof))
    return Remade(repairs=repairs, proof=proof, failures=failures)


def _unnamed(network: Network, candidate: Network) -> str | None:
    """Return where a candidate without repairs differs, at its opset; None if nowhere."""
    candidate = excluding(candidate, quantised_nodes(candidate), network)
    differs = first_difference(network, candidate)
    if differs is None or network.opset >= candidate.opset:
        return differs
    try:
        return first_difference(raise_opset(network, candidate.opset), candidate)
    except (CaseError, *REFUSALS):
        return differs


def _failures(differs: str | None, proof: Proof) -> Iterator[Failure]:
    if differs is not None:
        yield Failure(kind="other-graph", names={"node": differs})
    if not is_same(proof):
        numbers = {"error": proof.repaired, "limit": allowed(proof)}
        elements = {"elements": proof.broken, "mended": proof.mended}
        counts = {name: number for name, number in elements.items() if number}
        yield Failure(kind="unproven", numbers={**numbers, **counts})


def with_remade(verdict: Verdict, redone: Remade | None) -> Verdict:
    """Return the verdict; it fails if the candidate's repairs are not what they claim."""
    return with_failures(verdict, redone.failures) if redone and redone.failures else verdict


def shared_outputs(case: Case, shared: Collection[str], watcher: Watcher) -> Case:
    """Return the case on the outputs a candidate shares; warn about the others.

    A candidate may have more, such as all its inner tensors. It may lack outputs of the model that
    other nodes read: these are marked inner tensors.

    Args:
        case: Model and samples.
        shared: Names of the candidate's outputs.
        watcher: Receives what is left out, as do the case's notes.

    Raises:
        CaseError: the candidate lacks another output of the model, or all outputs.
    """
    outputs = case.network.graph.outputs
    declared = [str(v.name) for v in outputs]
    inner = {str(v.name) for v in outputs if v.uses()}
    lacking = [name for name in dict.fromkeys(declared) if name not in shared]
    if any(name not in inner for name in lacking) or len(lacking) == len(set(declared)):
        raise CaseError(
            f"The candidate's outputs are {quoted(sorted(shared))}, the model's "
            f"{quoted(sorted(set(declared)))}.",
            "Give a candidate made from this model, with the same output names; it may have more.",
        )
    left_out = {
        "candidate": sorted(set(shared) - set(declared)),
        "model": lacking,
    }
    for whose, names in left_out.items():
        if names:
            facts: dict[str, Fact] = {"whose": whose, "names": tuple(names)}
            case = _noted(case, Note(kind="left-out", severity="warning", facts=facts), watcher)
    if not lacking:
        return case
    network = replace(case.network, model=case.network.copy())
    keep_outputs(network.graph, shared)
    return without_outputs(replace(case, network=network), lacking)


def keep_outputs(graph: ir.Graph, names: Collection[str]) -> None:
    """Keep only the outputs with these names in a graph, in place."""
    kept = [value for value in graph.outputs if value.name in names]
    graph.outputs.clear()
    graph.outputs.extend(kept)


_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, *LOW_TYPES}


def broken_interface(network: Network, candidate: Network) -> Iterator[Failure]:
    """Yield how the candidate's outputs differ so that callers of the model break.

    A type that is no other width of float, or another order of the outputs that both have.
    """
    theirs = {str(v.name): v.dtype for v in candidate.graph.outputs}
    ours = {str(v.name): v.dtype for v in network.graph.outputs if v.name in theirs}
    for name, dtype in ours.items():
        given = theirs[name]
        if given and dtype and given != dtype and not {given, dtype} <= _FLOATS:
            types = {"output": name, "type": given.name, "expected": dtype.name}
            yield Failure(kind="interface", names=types)
    order = [name for name in theirs if name in ours]
    if order != list(ours):
        yield Failure(kind="interface", names={"order": listed(order)})


def mistyped(candidate: Network) -> tuple[str, ...]:
    """Return the contradictions between element types that were mended on reading, in words."""
    flaws = (repair for repair in candidate.repairs if repair.flaw is Flaw.MISTYPED)
    return tuple(name for repair in flaws for name in repair.names)


def with_mended(verdict: Verdict, candidate: Network) -> Verdict:
    """Return the verdict; it fails if the types in the candidate's file were mended on reading."""
    clashes = mistyped(candidate)
    if not clashes:
        return verdict
    names = {"first": clashes[0], **({"outputs": "pass"} if verdict.passed else {})}
    failure = Failure(kind="mistyped", names=names, numbers={"clashes": len(clashes)})
    return with_failures(verdict, (failure,), ahead=True)


def type_hints(network: Network, candidate: Network) -> tuple[str, ...]:
    """Return a sentence for each input and output of another type, which a caller has to know."""
    hints = list[str]()
    for ours, others, use in (
        (network.graph.inputs, candidate.graph.inputs, "feed"),
        (network.graph.outputs, candidate.graph.outputs, "read"),
    ):
        theirs = {value.name: value.dtype for value in others}
        for value in ours:
            given = theirs.get(value.name)
            if given and value.dtype and given != value.dtype:
                hints.append(
                    f"{value.name!r} is {given.name} in the candidate and {value.dtype.name} in "
                    f"the model: callers have to {use} it as that."
                )
    return tuple(hints)


def demand_valid(candidate: Network, *, runtime: Runtime = CPU) -> None:
    """Check that ONNX Runtime accepts a candidate's graph and types, unchanged.

    The emulation has its own types, so it may run what no runtime accepts. Missing kernels are
    allowed, and custom operators' low types are unknown here.

    Raises:
        CaseError: it does not accept them.
    """
    try:
        Session(candidate.model, runtime=runtime)
    except GraphRefused as refusal:
        if not any(map(is_low_custom, candidate.model.graph.all_nodes())):
            raise CaseError(
                f"{candidate.path or 'The candidate'} is not a valid model: {refusal.message}",
                "Convert the model again.",
            ) from refusal
    except (CaseError, RunFailed):
        return


def with_type_notes(case: Case, candidate: Network, watcher: Watcher) -> Case:
    """Return the case with notes on the candidate's types.

    They tell of its quantised parts, of FP32 products that TensorRT makes low, or that nothing is
    low.
    """
    graphs = graphs_of(candidate.model)
    if names := tuple(node_name(f.node) for graph in graphs for f in folded(graph)):
        note = Note(kind="folded", severity="warning", facts={"nodes": names})
        case = _noted(case, note, watcher)
    values = (v for graph in graphs for v in values_of(graph))
    types = census(candidate)
    if types.quantised:
        note = Note(kind="quantised", facts={"whose": "candidate", **asdict(types)})
    elif any(v.dtype in LOW_TYPES for v in values):
        return case
    else:
        note = Note(kind="none-low", severity="warning")
    return _noted(case, note, watcher)


def _noted(case: Case, note: Note, watcher: Watcher) -> Case:
    """Return the case with a note, which is told."""
    tell(watcher, [note])
    return replace(case, notes=(*case.notes, note))


def observed_worst(
    case: Case, run: Run, settings: Settings, watcher: Watcher
) -> Observations | None:
    """Return observations of FP32 on the worst samples; None if the candidate passed."""
    excesses = run.verdict.excesses
    if run.verdict.passed or len(excesses) != len(case.calibration):
        return None
    watcher.stage("observe")
    worst = sorted(range(len(excesses)), key=lambda i: -excesses[i])[:FEW]
    low = LOW_FORMATS[run.low or "fp16"]
    roles = roles_of(case.network, low_type(low))
    with frozen_named(case, settings):
        try:
            few = case.calibration.select(sorted(worst))
            return observe_network(case.network, few, low, roles=roles, runtime=settings.runtime)[0]
        except HalfwiseError as error:
            watcher.note(f"the tensors' values are unknown ({error.message})")
            return None


@bounded
def verify(
    model: Model,
    candidate: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    runner: str | None = None,
    baseline: str | Path | None = None,
    may_worsen: str | None = None,
    **options: Unpack[Options],
) -> Result:
    """Judge a candidate against the FP32 model: a model, an engine, or recorded outputs.

    Takes and raises what `fix` does. Every sample is judged, since there was no search.

    Args:
        model: FP32 model: path or proto.
        candidate: Any typed model (mixed, plain FP16, quantised, another tool's), emulated, or with
            `target` built into an engine and run; the path of an engine, which is run; or the path
            of outputs that another program computed on the inputs, judged unchanged: Polygraphy's
            `.json`, a folder of these, or a `.npz` (see `load_recorded`). Models and records may
            hold inner tensors too, see `shared_outputs`.
        inputs: Samples, as for `fix`.
        out: Run folder to create; must not exist. None writes nothing.
        watcher: Receives progress.
        runner: Runner whose outputs to judge, if the file holds several.
        baseline: Run folder of an earlier verdict on the same samples; a worse one fails.
        may_worsen: Allowed worsening of its figures: see `earlier`.
        options: See `Options`.
    """
    started = time.monotonic()
    watcher = watcher or Silent()
    request, target = understand_verify(inputs, options)
    settings, folder = request.settings, free_folder(out)
    before = earlier(baseline, may_worsen)
    path = Path(candidate) if isinstance(candidate, str | Path) else None
    if path is not None:
        refuse_run(path)
    builds = TENSORRT in (options.get("target") or ())
    if builds or (path is not None and is_engine(path)):
        _refuse("an engine", request, runner)
        case, run = _in_engine(model, candidate, request, target, watcher, started, before)
        return _written(case, beside(run, before), candidate, folder, watcher)
    _refuse_worker(options)
    original = case = _case_of(model, request, watcher, before)
    # Loaded first, since running the reference may take minutes.
    mixed = None
    if path is not None and holds_outputs(path):
        case, judged = _judging_recorded(path, case, request, watcher, runner)
    else:
        _refuse("a model", request, runner)
        loaded = load_model(candidate, watcher)
        mixed, case = _set_aside(loaded, case, settings.runtime)
        case, judged = _judging(mixed, case, request, watcher)
    stages = Stages(watcher, nodes_of(case.network))
    with stages("reference"):
        check(case.network, runtime=settings.runtime)
        with frozen_named(case, settings):
            references, nonfinite = inspected_reference(
                case.network, case.calibration, runtime=settings.runtime
            )
    hints = criterion_hints(case.criterion, references)
    worth, redone = None, None
    broken: tuple[Failure, ...] = ()
    if mixed is not None:
        broken = (*_other_aside(original, loaded), *broken_interface(original.whole, loaded))
        hints += () if original.stored.formats else type_hints(original.whole, loaded)
        worth = candidate_worth(case, settings, mixed)
        redone = remade(original, mixed, runtime=settings.runtime, watcher=watcher)
    with stages("judge"):
        verdict = with_remade(judged(references, nonfinite), redone)
    if broken:
        verdict = with_failures(verdict, broken)
    found = None if mixed is None else _blamed(mixed, verdict, case, references, request, watcher)
    run = verify_run(case, request, verdict, time.monotonic() - started, hints, worth=worth)
    if mixed is not None and path is not None and not run.next_step:
        steps = _next(case, request, path, mixed, passed=verdict.passed)
        run = run.model_copy(update={"next_step": steps})
    run = beside(run, before)
    seen = None if folder is None else observed_worst(case, run, settings, watcher)
    run = run.model_copy(update={"remade": redone, "blame": found})
    return _written(case, run, candidate, folder, watcher, observations=seen)


def _blamed(
    candidate: Network,
    verdict: Verdict,
    case: Case,
    references: Sequence[Outputs],
    request: Request,
    watcher: Watcher,
) -> Blame | None:
    """Return where the error of a quantised candidate that fails comes from; None for others."""
    if verdict.passed or not verdict.judged or not quantising(candidate):
        return None
    watcher.stage("blame")
    worst = worst_first(verdict.excesses)
    return blame(candidate, case, references, request.settings, watcher, worst)


def _next(
    case: Case, request: Request, path: Path, candidate: Network, *, passed: bool
) -> tuple[Step, ...]:
    kinds = {
        "quantised": bool(quantised_nodes(as_pairs(candidate))),
        "integers": bool(quantising(candidate)),
        "loads": not mistyped(candidate),
    }
    return after_verify(case, request, path, passed=passed, **kinds)


def _set_aside(candidate: Network, case: Case, runtime: Runtime) -> tuple[Network, Case]:
    """Return a candidate without what was set aside of the case's model, and the case.

    Both are whole if another branch than the judged one is low or differs: no sample tests it.
    """
    aside = case.aside
    if aside is None:
        return candidate, case
    if aside.branches:
        ours, theirs = (bodies_in(network.graph) for network in (aside.whole, candidate))
        check_types(candidate, runtime=runtime)
        idle = {key for key in ours if aside.branches.get(key[0], key[1]) != key[1]}
        if all(
            key in theirs
            and not theirs[key].computes(low=True)
            and alike(ours[key].graph, theirs[key].graph)
            for key in idle
        ):
            return resolve(candidate, aside.branches)[0], case
        return candidate, replace(case, network=aside.whole, aside=None)
    types = {value.name: value.dtype for value in case.network.graph.inputs}
    given = {n: types[n] or ir.DataType.FLOAT for n in aside.supplied}
    judged, other = set_aside(candidate, runnable(runtime), given)
    judged = replace(judged, model=judged.copy())
    # A Cast may stand between what is judged and what is not run.
    values = {v.name: v for v in values_of(judged.graph)}
    ends, declared = judged.graph.outputs, {v.name for v in candidate.graph.outputs}
    behind = set() if other is None else {*other.read}.difference(aside.read, declared)
    ends[:] = [v for v in ends if v.name not in behind]
    ends.extend(values[n] for n in aside.read if n in values and values[n] not in ends)
    return judged, case


def _other_aside(case: Case, candidate: Network) -> Iterator[Failure]:
    """Yield that what is not run differs in a candidate's file."""
    where = None if case.aside is None else case.aside.differs(candidate)
    if where is not None:
        yield Failure(kind="other-aside", names={"where": where})


def _case_of(model: Model, request: Request, watcher: Watcher, before: Earlier | None) -> Case:
    """Return the case; its samples match the baseline's, if there is one."""
    case = load_asked(model, request, watcher, split=False)
    demand_comparable(case, before)
    return replace(case, calibration=case.calibration.with_progress(watcher.step))


def _in_engine(
    model: Model,
    candidate: Model,
    request: Request,
    target: Target,
    watcher: Watcher,
    started: float,
    before: Earlier | None,
) -> tuple[Case, Run]:
    """Return the case and the record of an engine, given or built from a given model."""
    path = Path(candidate) if isinstance(candidate, str | Path) else None
    engine = demand_engine(path) if path is not None and is_engine(path) else None
    case = _case_of(model, request, watcher, before)
    with frozen_named(case, request.settings):
        if engine is not None:
            return case, verify_engine(engine, case, request, target, watcher, started)
        if path is not None and holds_outputs(path):
            raise UsageError(
                f"{path} holds recorded outputs, so no engine can be built from it.",
                "Give a model, or leave --target out.",
            )
        other, case = _on_shared(load_model(candidate, watcher), case, watcher)
        run = verify_built(other, case, request, target, watcher, started)
        return case, run.model_copy(update={"verdict": with_mended(run.verdict, other)})


def _on_shared(candidate: Network, case: Case, watcher: Watcher) -> tuple[Network, Case]:
    """Return a candidate and the case, both on the outputs they share."""
    demand_same_inputs(case.network, candidate.model, "the candidate")
    case = shared_outputs(case, {str(v.name) for v in candidate.graph.outputs}, watcher)
    candidate = replace(candidate, model=candidate.copy())
    keep_outputs(candidate.graph, {str(v.name) for v in case.network.graph.outputs})
    return candidate, case


def _written(
    case: Case,
    run: Run,
    candidate: Model,
    folder: Path | None,
    watcher: Watcher,
    *,
    observations: Observations | None = None,
) -> Result:
    name = str(candidate) if isinstance(candidate, str | Path) else "in memory"
    provenance = run.provenance.model_copy(update={"candidate": name})
    run = run.model_copy(update={"provenance": provenance})
    if folder is not None:
        watcher.stage("store")
        with new_folder(folder) as partial:
            finish(partial, run, case, watcher, observations=observations)
    return Result(run, folder, observations=observations)


def _refuse_worker(options: Mapping[str, Any]) -> None:
    if options.keys() & WorkerOptions.__annotations__.keys() - {"run_timeout"}:
        raise UsageError(
            "Worker options do not apply here: the candidate is not an engine.",
            "Give an engine file (.engine, .plan or .trt), leave the TensorRT options out, or "
            "build an engine from the candidate: --target tensorrt.",
        )


_INAPPLICABLE = {
    "an engine": ("--accumulate", "--runner", "--target"),
    "a model": ("--runner",),
    "recorded outputs": ("--accumulate", "--target"),
}
"""Options by kind of candidate: only models are emulated, only records have runners."""


def _refuse(kind: str, request: Request, runner: str | None) -> None:
    """Raise UsageError if an option does not apply to a kind of candidate."""
    options = {
        "--target": bool(request.settings.targets),
        "--accumulate": "accumulate" in request.given,
        "--runner": runner is not None,
    }
    for name in _INAPPLICABLE[kind]:
        if options[name]:
            raise UsageError(f"{name} does not apply to {kind}.", "Leave it out.")


Judging = Callable[[Sequence[Outputs], frozenset[TensorName]], Verdict]
"""Judges a candidate by the reference's outputs; takes its tensors that are not finite, too."""


def _judging(
    candidate: Network, case: Case, request: Request, watcher: Watcher
) -> tuple[Case, Judging]:
    """Return the case on a model's outputs, and a function that judges it by emulation."""
    settings, samples = request.settings, case.calibration
    other, case = _on_shared(candidate, case, watcher)
    check_types(other, runtime=settings.runtime)
    demand_valid(other, runtime=settings.runtime)
    case = with_type_notes(case, other, watcher)

    def emulate(references: Sequence[Outputs], nonfinite: frozenset[TensorName]) -> Verdict:
        judged = judge(
            other.model,
            samples,
            references,
            case.criterion,
            case.metric,
            reference_nonfinite=nonfinite,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )
        if not mistyped(other):  # the file itself runs nowhere
            with running(settings.targets):
                judged = judged_as_file(judged, other.model, case, settings, samples, references)
        verdict = judge_sizes(judged.verdict, case, other.model, samples, references, settings)
        verdict = with_unjudged(verdict, case, request, other.model, samples, references)
        return with_mended(verdict, other)

    return case, emulate


def _judging_recorded(
    path: Path, case: Case, request: Request, watcher: Watcher, runner: str | None
) -> tuple[Case, Judging]:
    """Do what `_judging` does, for recorded outputs."""
    settings, samples = request.settings, case.calibration
    _refuse("recorded outputs", request, runner)
    names = {str(v.name) for v in case.network.graph.outputs}
    recorded = load_recorded(path, len(samples), runner, wanted=names)
    case = shared_outputs(case, recorded.names, watcher)

    def compare(references: Sequence[Outputs], _: frozenset[TensorName]) -> Verdict:
        results = fit_recorded(recorded, references, samples.ids)
        verdict = judge_outputs(
            results,
            samples,
            references,
            case.criterion,
            case.metric,
            level="recorded",
            runner=recorded.runner,
        ).verdict
        verdict = judge_sizes(verdict, case, None, samples, references, settings)
        return with_unjudged(verdict, case, request, None, samples, references)

    return case, compare


def understand_verify(inputs: Inputs, options: Mapping[str, Any]) -> tuple[Request, Target]:
    """Return the options of `verify`, and the target of an engine.

    Raises:
        UsageError: see `understand` and `engine_target`.
    """
    targets = options.get("target") or ()
    targets = [targets] if isinstance(targets, str) else [*targets]
    builds = TENSORRT in targets
    worker, others = split(options, BuildingOptions if builds else WorkerOptions)
    others["target"] = [name for name in targets if name != TENSORRT]
    return understand(inputs, others).by_use, engine_target(worker)
