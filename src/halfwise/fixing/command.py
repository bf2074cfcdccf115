"""`fix`: the smallest set of FP32 nodes, a mixed model, its verdict.

Also the call of onnxconverter-common's `float16` module, so that one import changes.
"""

import time
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, Unpack

import onnx
import onnx_ir as ir
from msgspec import Struct

from halfwise.case import FEW_SAMPLES, Case, Rules, Samples, Settings
from halfwise.declarations import Inputs, Options
from halfwise.emulation.budget import forgiving
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import running, static
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import RunFailed, UsageError
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.outcome import fix_run
from halfwise.fixing.plan.rules import apply_rules
from halfwise.fixing.repair.making import marked
from halfwise.fixing.result import Result
from halfwise.fixing.rewrite import rewrite, save_checked
from halfwise.formats import FP16
from halfwise.graph.aside import write_back
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, node_name
from halfwise.graph.norms import NORMALISATIONS
from halfwise.graph.quantised import quantising
from halfwise.graph.roles import float_io, roles_of
from halfwise.graph.written_out import written_out
from halfwise.judging.batching import (
    Apart,
    Batches,
    Batching,
    batch_axes,
    dynamic_inputs,
    find_batching,
    plan_batches,
)
from halfwise.judging.judge import judge_outputs, not_failing
from halfwise.judging.reference import check_types
from halfwise.linting import precision_remarks, refusal
from halfwise.metrics import Excess, Outputs, totals
from halfwise.options.engines import Target
from halfwise.options.loading import load_asked, load_model, load_start, tell
from halfwise.options.options import INT8, Model, Request, bounded, understand
from halfwise.progress import Silent, Watcher, interruption
from halfwise.records import (
    DynamicAxis,
    Fact,
    Failure,
    JudgedBatch,
    NodeName,
    NotBatched,
    Note,
    Observations,
    Profile,
    ShapeRange,
    TensorName,
    Verdict,
    replace,
)
from halfwise.reporting.parts import first_of
from halfwise.reporting.remarks import message, under, with_failures
from halfwise.store import MODEL_FILE, STATIC_FILE, free_folder, new_folder
from halfwise.wording import dimensions


@bounded
@forgiving()
def fix(
    model: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Result:
    """Find the smallest set of FP32 nodes, write the mixed model, and judge it on held-out data.

    Args:
        model: FP32, FP16 or BF16 model: path or proto.
        inputs: Samples: file, folder, `file.py:function`, or arrays in memory.
        out: Run folder to create; must not exist. None writes nothing.
        watcher: Receives progress.
        options: See `Options`.

    Raises:
        HalfwiseError: the model, the inputs or an option is unusable. A failed verdict is not an
            error: see `Result.run.verdict`.
    """
    return fix_request(model, understand(inputs, options).by_use, out=out, watcher=watcher)


def fix_request(
    model: Model,
    request: Request,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Run `fix` with parsed options.

    Raises:
        HalfwiseError: see `fix`.
    """
    started = time.monotonic()
    folder = free_folder(out)
    start = None if request.start_from is None else load_start(request.start_from)
    if isinstance(start, Network):
        check_types(start, runtime=request.settings.runtime)
        if quantising(start):
            settings, options = replace(request.settings, int8=True), {"to": INT8, **request.given}
            request = replace(request, settings=settings, given=options, ladder=True)
    watcher = watcher or Silent()
    with running(request.settings.targets):
        loaded = load_asked(model, request, watcher)
        marked(loaded.network.model)  # an entry that cannot be read is refused before a search
        case = _linted(loaded, request.target, watcher)
        if request.target is not None:
            # Loaded here: 0.3 s and 9 MiB, which only runs with a target need.
            from halfwise.fixing.engines.command import fix_in_engines  # noqa: PLC0415

            return fix_in_engines(case, request, watcher, start=start, out=folder, started=started)
        fixed = run_fix(case, request.settings, watcher, start_from=start)
    return concluded(case, request, fixed, folder, started, watcher)


def concluded(
    case: Case,
    request: Request,
    fixed: Fixed,
    folder: Path | None,
    started: float,
    watcher: Watcher,
) -> Result:
    """Return the run of a result found without engines, and write it into `folder`, if any.

    Args:
        case: The case.
        request: The options.
        fixed: Result of the search.
        folder: Run folder to create.
        started: `time.monotonic()` at the start of the run.
        watcher: Receives progress.
    """
    watcher.stage("store")
    settings = request.settings
    fixed = _at_sizes(fixed, case, settings)
    mixed, foreign = fixed.rewritten.model, case.aside is not None and bool(case.aside.foreign)
    written = write_back(mixed, case.aside)
    case, form = _with_static(case, written, fixed.verdict)
    ran = written is mixed and any(not file.not_run for file in fixed.verdict.as_file[:1])
    run = fix_run(case, request, fixed, time.monotonic() - started, folder)
    if folder is not None:
        from halfwise.page.finish import finish  # noqa: PLC0415 - what no folder needs

        with new_folder(folder) as partial:
            path, runtime = partial / MODEL_FILE, settings.runtime
            save_checked(written, path, runtime=runtime, foreign=foreign, ran=ran)
            if form is not None:
                save_checked(form, partial / STATIC_FILE, runtime=runtime)
            finish(partial, run, case, watcher, mixed=mixed, observations=fixed.seen)
    return Result(run, folder, written, fixed.seen)


def _with_static(case: Case, written: ir.Model, verdict: Verdict) -> tuple[Case, ir.Model | None]:
    """Return the model to write for the samples' shapes alone, if only that is built; and the case.

    The linter says that, or a builder that was asked.
    """
    told = next((note for note in case.notes if note.kind == "static"), None)
    for file in verdict.as_file:
        if file.static:
            told = _static_note(case, {"reasons": file.static, "more": 0})
    if told is None:
        return case, None
    form = static(Network(written, None, "", {}), case.calibration + case.heldout)
    others = (note for note in case.notes if note.kind not in ("static", "unbuilt", "late"))
    told = replace(told, kind="unbuilt" if form is None else "static")
    case = replace(case, notes=(*others, told))
    return case, None if form is None else form.model


def _at_sizes(fixed: Fixed, case: Case, settings: Settings) -> Fixed:
    """Return the result judged at further sizes; the plan below if INT8 fails only there."""
    sized = _sized(fixed, case, settings)
    has_int8 = bool(fixed.rungs) and fixed.plan == fixed.rungs[-1].plan
    if sized.verdict.passed or not has_int8:
        return sized
    below, low = _sized(fixed.rungs[0], case, settings), fixed.rungs[-1]
    if not below.verdict.passed:
        return sized
    rungs = below, replace(low, verdict=sized.verdict)
    took = fixed.stage_seconds
    return replace(below, rungs=rungs, stage_seconds=took, all_int8=fixed.all_int8)


def _sized(fixed: Fixed, case: Case, settings: Settings) -> Fixed:
    judged_on = fixed.heldout.samples, fixed.heldout.references
    verdict = judge_sizes(fixed.verdict, case, fixed.rewritten.model, *judged_on, settings)
    return replace(fixed, verdict=verdict)


def _linted(case: Case, target: Target | None, watcher: Watcher) -> Case:
    """Add the linter's findings about the case's file to its notes.

    If TensorRT builds the model only with the samples' shapes fixed, engines are of that form,
    unless the user gave shapes. Where it depends on the version, no target fixes them.
    """
    remarks = precision_remarks(case.whole)
    kinds = ("unbuilt", "late") if target is None else ("unbuilt",)
    refused = next((note for note in remarks if note.kind in kinds), None)
    given = target is not None and target.shapes != ((), (), ())
    form = None if refused is None or given else static(case.whole, case.calibration + case.heldout)
    again = None if form is None else refusal(form)
    if refused is not None and form is not None and (again is None or again.kind != refused.kind):
        file = STATIC_FILE if target is None else MODEL_FILE
        note = _static_note(case, refused.facts, file)
        remarks = tuple(note if one is refused else one for one in remarks)
        if target is not None:
            case = replace(case, network=form, aside=None)
    tell(watcher, remarks)
    return replace(case, notes=(*case.notes, *remarks))


def _static_note(case: Case, refused: Mapping[str, Fact], file: str = STATIC_FILE) -> Note:
    """Return that TensorRT builds the model only with fixed shapes, and which."""
    sizes = (f"{name}: {dimensions(shape)}" for name, shape in case.input_shapes.items())
    facts: dict[str, Fact] = {**refused, "shapes": tuple(sizes), "file": file}
    return Note(kind="static", severity="warning", facts=facts)


_JOINED_FOR_METRIC = 16
"""Samples joined in pairs for a metric that the user names, which may say little of a few."""

_Shapes = dict[TensorName, tuple[int, ...]]


class _Tried(Struct, frozen=True):
    """The batch axis of each input; results of batches, or why there are none."""

    inputs: Mapping[TensorName, int]
    batch: JudgedBatch | None = None
    why: NotBatched | None = None
    detail: str = ""


def judge_sizes(
    verdict: Verdict,
    case: Case,
    candidate: ir.Model | None,
    samples: Samples,
    references: Sequence[Outputs],
    settings: Settings,
) -> Verdict:
    """Add to `verdict` the result of batches, and the judged sizes of the dynamic axes.

    If all samples have one size along the batch axis, a few are joined in pairs. These fail the
    verdict if they are out of tolerance, relative to the reference values of all samples. A model
    without dynamic axes keeps its verdict unchanged.

    Args:
        verdict: On `samples`.
        case: The reference, the criterion and the metric.
        candidate: The judged typed model; None for recorded outputs.
        samples: The judged samples; each is loaded once for its shapes.
        references: Reference outputs of each.
        settings: Where to run, and the format of sums.
    """
    dynamic, outputs = dynamic_inputs(case.network), dict(zip(samples.ids, references, strict=True))
    samples = not_failing(verdict, samples, case.criterion)
    if not dynamic or not samples:
        return verdict
    shapes = [{name: sample[name].shape for name in dynamic} for sample in samples]
    tried = _Tried(next(batch_axes(case.network), {}))
    sizes = [{shape[name][axis] for shape in shapes} for name, axis in tried.inputs.items()]
    if tried.inputs and all(len(each) == 1 for each in sizes):
        named = case.metric is not None and not case.criterion.recognised
        few = _alike(shapes, _JOINED_FOR_METRIC if named else FEW_SAMPLES)
        if candidate is None:
            tried = replace(tried, why="recorded")
        elif interruption().asked:
            tried = replace(tried, why="interrupted")
        else:
            tried = _in_batches(case, candidate, samples.select(few), outputs, settings)
    of_model = {name: axes for name, axes in dynamic.items() if name not in case.supplied}
    verdict = replace(verdict, batch=tried.batch, axes=_axes(of_model, shapes, tried))
    if tried.batch is None or tried.batch.passed:
        return verdict
    return with_failures(verdict, under("batch", tried.batch.size, tried.batch.failures))


def _alike(shapes: Sequence[_Shapes], limit: int) -> list[int]:
    """Return indices of the first samples with the most frequent shapes."""
    keys = [tuple(shape.items()) for shape in shapes]
    ((common, _),) = Counter(keys).most_common(1)
    return [index for index, key in enumerate(keys) if key == common][:limit]


def _in_batches(
    case: Case,
    candidate: ir.Model,
    samples: Samples,
    outputs: Mapping[str, Outputs],
    settings: Settings,
) -> _Tried:
    """Judge some samples, all of one shape, in batches; `outputs` of all by their identifiers.

    Right is what FP32 gives for the same batches, also where the model mixes their samples.
    """
    session = Session(case.network.model, runtime=settings.runtime)
    batching = find_batching(case.network, session, samples, outputs)
    tried, whole = _Tried(batching.inputs), isinstance(batching, Apart)
    if isinstance(batching, Apart):
        if any(batching.inputs.values()):
            return _Tried({})  # an axis such as a width: only real samples count there
        if batching.why != "whole":
            why = None if batching.why == "axis" else batching.why
            return replace(tried, why=why, detail=batching.reason)
        if case.metric is not None:
            return replace(tried, why="metric", detail=batching.reason)
        batching = Batching(batching.inputs, {})
    batches, size = _by_twos(batching, samples)
    joined, judged = batches.samples, batches.judged
    assert joined is not None
    assert judged is not None
    try:
        wanted = batches.take_apart([session.run(batch) for batch in joined])
    except RunFailed as error:
        return replace(tried, why="fails", detail=error.message)
    record = JudgedBatch(size=size, samples=judged.ids, whole=whole, passed=False)
    low = emulate_typed(candidate, accumulate=settings.accumulate)
    session = Session(low, runtime=settings.runtime)
    try:
        results = batches.take_apart([session.run(batch) for batch in joined])
    except RunFailed as error:
        failures = (Failure(kind="batch", names={"why": error.message}),)
        return replace(tried, batch=with_failures(record, failures))
    criterion = case.criterion.of_each
    verdict = judge_outputs(results, judged, wanted, criterion, case.metric).verdict
    # A few samples may have smaller values than the whole set, which sets the tolerance.
    excess = Excess(criterion, totals([*outputs.values(), *wanted]))
    for reference, result in zip(wanted, results, strict=True):
        excess.update(reference, result)
    passed = verdict.passed or (case.metric is None and excess.value <= 1)
    return replace(
        tried, batch=replace(record, passed=passed, failures=() if passed else verdict.failures)
    )


def _by_twos(batching: Batching, samples: Samples) -> tuple[Batches, int]:
    """Return batches of two samples each, and their size; all samples have the same shapes."""
    first = samples[0]
    size = 2 * (batching.size(first) or 0)
    shapes = {}
    for name, axis in batching.inputs.items():
        shape = (*first[name].shape[:axis], size, *first[name].shape[axis + 1 :])
        shapes[name] = ShapeRange(min=shape, opt=shape, max=shape)
    (batches,) = plan_batches(batching, [Profile(shapes=shapes)], samples)
    return batches, size


def _axes(
    dynamic: Mapping[TensorName, Sequence[int | str | None]],
    shapes: Sequence[_Shapes],
    tried: _Tried,
) -> tuple[DynamicAxis, ...]:
    """Return the dynamic axes; axes of several inputs are one if symbol and all samples agree.

    Exporters label what they do not know: '?' on height and width, which no sample has equal.
    """
    groups: dict[tuple[object, tuple[int, ...]], dict[TensorName, int]] = {}
    for name, axes in dynamic.items():
        for axis, symbol in enumerate(axes):
            if not isinstance(symbol, int):
                is_batch = tried.inputs.get(name) == axis
                key: object = "" if is_batch else symbol or (name, axis)
                sizes = tuple(shape[name][axis] for shape in shapes)
                groups.setdefault((key, sizes), {})[name] = axis
    records = []
    for (shared, sizes), inputs in groups.items():
        name, axis = next(iter(inputs.items()))
        is_batch, symbol = shared == "", dynamic[name][axis]
        joined = [tried.batch.size] if is_batch and tried.batch is not None else []
        records.append(
            DynamicAxis(
                inputs=inputs,
                symbol=symbol if isinstance(symbol, str) else None,
                sizes=tuple(sorted({*sizes, *joined})),
                why=tried.why if is_batch else None,
                detail=tried.detail if is_batch else "",
            )
        )
    return tuple(records)


CERTAIN = 1.0
"""From this severity on, a guard is no mere possibility (`fixing.attribute`)."""


def convert_float_to_float16(
    model: Model,
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | Sequence[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    check_fp16_ready: bool = True,
    *,
    inputs: Inputs | None = None,
    **options: Unpack[Options],
) -> onnx.ModelProto:
    """Return the model in FP16, with what FP16 breaks in FP32; arguments of onnxconverter-common.

    With inputs it is what `fix` finds: the fewest nodes in FP32, repaired and judged on held-out
    samples. Without, nodes stay in FP32 where constants, types or a written-out normalisation show
    that FP16 breaks them, and nothing is judged.

    Args:
        model: FP32 model: path or proto; a proto is not changed.
        min_positive_val: Not needed: constants keep their values where FP16 can hold them.
        max_finite_val: Not needed: only constants beyond FP16's 65504 are stored as that.
        keep_io_types: Whether inputs and outputs stay FP32: all of them, or none.
        disable_shape_infer: Not needed.
        op_block_list: Operator types that stay in FP32; those that the model lacks are ignored.
        node_block_list: Names of nodes that stay in FP32; likewise.
        check_fp16_ready: Not needed: a model that is partly in FP16 is read as well.
        inputs: Real samples, as for `fix`; None for none.
        options: With inputs, further options of `fix`.

    Raises:
        HalfwiseError: see `fix`.

    Warns:
        UserWarning: nothing was judged, or the verdict failed.
    """
    del min_positive_val, max_finite_val, disable_shape_infer, check_fp16_ready
    if not isinstance(keep_io_types, bool):
        raise UsageError(
            "keep_io_types is a list; expected True or False.",
            "halfwise keeps the types of all inputs and outputs, or of none.",
        )
    rules = Rules()
    if inputs is None or node_block_list or op_block_list:
        network = load_model(model)
        rules = _rules(network, node_block_list or (), op_block_list or ())
        if inputs is None:
            return _unjudged(network, rules, low_io=not keep_io_types)
    io: Literal["fp32", "fp16"] = "fp32" if keep_io_types else "fp16"
    given: Options = {"io": io, "keep": rules.keep, "keep_op": rules.keep_op, **options}
    result = fix(model, inputs, **given)
    if not result.run.verdict.passed:
        warnings.warn(str(result), stacklevel=2)
    assert result.model is not None
    return result.model


def _rules(network: Network, nodes: Collection[str], ops: Collection[str]) -> Rules:
    """Return that those of the nodes and operator types stay in FP32 that the network has."""
    names = {node_name(node) for node in network.nodes()} | set(network.original_names.values())
    types = {node.op_type for node in network.nodes()}
    return Rules(
        keep=tuple(name for name in nodes if name in names),
        keep_op=tuple(op for op in ops if op in types),
    )


def _unjudged(network: Network, rules: Rules, *, low_io: bool) -> onnx.ModelProto:
    """Return the model in FP16 but for what needs no data to be known."""
    network, _ = upcast(network)
    roles = roles_of(network)
    unseen = Observations(tensors=(), inner=(), samples=())
    kept = set(apply_rules(network, roles, rules).kept)
    guards = Attribution(network, roles, unseen, FP16).guards
    # An eps that FP16 stores as zero needs no data to be known.
    shown = [g for g in guards if g.severity >= CERTAIN or g.names.get("becomes") == "zero"]
    for guard in shown:
        kept.update(guard.nodes)
    for op in NORMALISATIONS:
        kept.update(node for group in written_out(network, op) for node in group)
    made = assigned(network, kept, low_io=low_io)
    judged = (
        "Nothing was judged, as there are no inputs: nodes stay in FP32 only by what constants and "
        "types show. Overflows in real data do not show there; give inputs=…."
    )
    named = first_of([f"{guard.node}: {message(guard)}." for guard in shown])
    warnings.warn("\n".join([judged, *named]), stacklevel=3)
    return ir.serde.serialize_model(made)


def assigned(network: Network, fp32: Collection[NodeName], *, low_io: bool = False) -> ir.Model:
    """Return an FP32 network in FP16 but for `fp32`, of which those that have to be FP32 count not.

    Args:
        network: The model in FP32.
        fp32: Nodes that stay so.
        low_io: Whether float inputs and outputs become FP16.
    """
    roles = roles_of(network)
    kept = frozenset(node for node in fp32 if roles[node].free)
    ends = float_io(network) if low_io else frozenset[TensorName]()
    return rewrite(network, roles, kept, FP16, fixed=kept - roles.computing, low_io=ends).model
