"""The options, sorted by use and checked against each other; the metric that the user named."""

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from math import inf
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, get_args, get_origin

import numpy as np
import onnx
from msgspec import Struct

from halfwise import declarations
from halfwise.case import Case, Rules, Runtime, Seen, Settings
from halfwise.declarations import Inputs, Options, check, default, spelt
from halfwise.declarations.option import option, share, shell_type
from halfwise.declarations.options import Acceptance, Thresholds
from halfwise.emulation.budget import limited
from halfwise.emulation.probe import ExtremaProbe, observable
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.formats import FP16, LOW_FORMATS
from halfwise.inputs import load_function
from halfwise.memory import few_collections
from halfwise.metrics import (
    AUTO,
    BUILT_IN,
    SHARES,
    Metric,
    Outputs,
    by_outputs,
    check_labels,
    default_drop,
    has_to_see,
    resolve,
    settle,
    settled_metric,
)
from halfwise.metrics.kinds import looked_at
from halfwise.metrics.measures import DEFAULT_REL_MAX
from halfwise.options.engines import Target, run_here, understand_target
from halfwise.records import Allowed, Criterion, Fact, Note, Recognised, RightBy, replace
from halfwise.targets import profiles, runners
from halfwise.user_code import RAISED, described
from halfwise.wording import listed, meant, typed

Model = str | Path | onnx.ModelProto
"""A path or a model in memory."""

P = ParamSpec("P")
R = TypeVar("R")
_LABELS = ("labels", "heldout_labels")
_BY_ERROR = Thresholds.__annotations__.keys() | {"strict"}
"""Options with which no metric decides, so labels have no use."""


class Data(Struct, frozen=True):
    """Where samples come from; fields as in `Options`."""

    inputs: Inputs
    heldout: Inputs | None = None
    preprocess: str | None = None
    labels: Path | None = None
    heldout_labels: Path | None = None
    plugin_outputs: str | None = None


class Request(Struct, frozen=True):
    """Options sorted by use.

    Attributes:
        data: For loading.
        criterion: For judging.
        settings: For the pipeline.
        start_from: Mixed model or run to start from.
        given: The given options, as text, for the record.
        target: Where engines are built; None for nowhere.
        ladder: Whether every type from FP32 down is measured and recorded.
        right_by: The criterion by which FP32 was found right; None if there is none.
        command: The command that was given, if it is not the kind of its run.
    """

    data: Data
    criterion: Criterion
    settings: Settings
    given: dict[str, str]
    start_from: Path | None = None
    target: Target | None = None
    ladder: bool = False
    right_by: RightBy | None = None
    command: str = ""

    @property
    def by_use(self) -> "Request":
        """The same, judging outputs by their use unless the user says what is right."""
        failing = self.criterion.failing
        if self.criterion != Criterion(failing=failing):
            return self
        return replace(self, criterion=Criterion(metric=AUTO, failing=failing))


def understand(inputs: Inputs, options: Mapping[str, Any]) -> Request:
    """Return the options sorted and checked.

    Args:
        inputs: Where samples come from.
        options: `Options`.

    Raises:
        UsageError: an unknown option, or a value outside its domain.
    """
    names = Options.__annotations__
    for name in options.keys() - names.keys():
        hint = meant(name, names, f"Options: {', '.join(names)}.")
        raise UsageError(f"Unknown option {name}.", hint)
    values = run_here(declarations.given(**options))
    for name, value in values.items():
        kind = get_origin(shell_type(Options.__annotations__[name]))
        if kind is Sequence and isinstance(value, str | Path):
            values[name] = (value,)
    check(values)
    if "failing" in values:
        values["failing"] = _failing(values["failing"])
    _check_means_something(values)
    _check_company(values)
    libraries = tuple(Path(path) for path in values.get("ort_library", ()))
    sm = capability(values.get("sm", default("sm")))
    asked = values.get("target", ())
    targets = runners.runners_of(asked, sm, libraries) if asked else ()
    # Runtimes that ignore FP32 nodes have no FP32 sums.
    if (targets and profiles.lowest_sums_of(targets) == "fp16") or "only" in values:
        values = {"accumulate": "fp16", **values}
    rules = {name: tuple(values[name]) for name in ("keep", "keep_op", "lower") if name in values}
    paths = {name: Path(values[name]) for name in _LABELS if name in values}
    return Request(
        data=Data(inputs, **_fields(Data, values) | paths),
        criterion=_criterion(values),
        settings=Settings(
            rules=Rules(**rules, only="only" in values),
            fmt=LOW_FORMATS[low_of(values)],
            int8=values.get("to") == INT8,
            runtime=Runtime(values.get("device", default("device")), libraries),
            targets=targets,
            allow=frozenset(each for each in get_args(Allowed) if f"allow_{each}" in values),
            **_fields(Settings, values),
        ),
        given={name: _text(value) for name, value in values.items()},
        start_from=Path(values["start_from"]) if "start_from" in values else None,
        target=understand_target(values),
        ladder=values.get("to") == INT8,
    )


def capability(given: str) -> str:
    """Return a compute capability as it is given, such as "SM86"; UsageError if it is none."""
    if not re.fullmatch("SM[0-9]{2,3}", given):
        raise UsageError(
            f"--sm is {given!r}; expected a compute capability.",
            "Give SM and its digits: SM86 for 8.6.",
        )
    return given


def _failing(word: str | float) -> float:
    """Return the share of inputs that may fail; UsageError unless it is above 0 and below 1."""
    value = share(word)
    if value is None or not 0 < value < 1:
        raise UsageError(
            f"--failing is {word}; expected a share above 0 and below 1, such as 1% or 0.01.",
            "Samples never show that no input fails; without --failing, each of them must pass.",
        )
    return value


def _fields(kind: type[Data | Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in kind.__struct_fields__ if name in options}


def bounded(command: Callable[P, R]) -> Callable[P, R]:
    """Bound each evaluation of a command by its option `run_timeout`; collect garbage seldom."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        options = cast(dict[str, Any], kwargs)
        with few_collections(), limited(options.get("run_timeout")):
            return command(*args, **kwargs)

    return run


def _criterion(options: Mapping[str, Any]) -> Criterion:
    criterion = Criterion(**{n: options[n] for n in Criterion.__struct_fields__ if n in options})
    if "strict" in options:
        return replace(criterion, rel_max=DEFAULT_REL_MAX)
    if criterion.metric is None or "metric_drop" in options:
        return criterion
    usual = default_drop(criterion.metric, labelled=bool(options.keys() & _LABELS))
    if usual is not None:
        return replace(criterion, metric_drop=usual.drop, drop_source=usual.source)
    if ":" not in criterion.metric:
        # Loading the metric reports an unknown name.
        return criterion
    raise UsageError(
        f"{criterion.metric} needs --metric-drop: only its author knows its scale.",
        "Give --metric-drop X in the metric's unit: 0.01 is usual for an accuracy; 0 allows no "
        "drop, for a metric that moves in steps.",
    )


def _text(value: object) -> str:
    if isinstance(value, str | Path | int | float):
        return str(value)
    if isinstance(value, Sequence) and all(isinstance(v, str | Path) for v in value):
        return ", ".join(str(v) for v in value)
    return f"in memory ({type(value).__name__})"


def _check_means_something(options: Mapping[str, Any]) -> None:
    """Refuse criteria that zeros would pass whatever the model: they demand nothing."""
    zeros = {
        "rel_max": ("less than 1", 1.0, 1),
        "snr_db": ("more than 0", 0.0, -1),
        "cosine": ("more than 0", 0.0, -1),
        "agreement": ("more than 0", 0.0, -1),
    }
    for name, (expected, limit, sign) in zeros.items():
        if name in options and sign * options[name] >= sign * limit:
            raise UsageError(
                f"{spelt(name)} is {typed(options[name])}, which lets any model pass that outputs "
                f"zeros; expected {expected}.",
                option(Options.__annotations__[name]).help,
            )


def _check_company(options: Mapping[str, Any]) -> None:
    """Check that options come with those they need, and without conflicting ones."""
    named = options.keys()
    low, io, metric = low_of(options), options.get("io"), options.get("metric")
    workers = options.get("trt_worker")
    unlabelled = [spelt(name) for name in _LABELS if name not in options]
    refused = (
        (
            metric in SHARES and options.get("metric_drop", 0) >= 1,
            f"--metric-drop is {typed(options.get('metric_drop', 0))}, but {metric} is never above "
            "1, so this would let it drop to 0.",
            "Give less than 1; 0.01 is usual.",
        ),
        (
            io not in (None, "fp32", low),
            f"--io {io} does not work with --to {low}: a model has one low format.",
            f"Give --io fp32 or --io {low}.",
        ),
        (
            low == "bf16" and options.get("accumulate") == "fp16",
            "--accumulate fp16 does not work with --to bf16: tensor cores accumulate BF16 products "
            "only in FP32.",
            "Leave --accumulate out.",
        ),
        (
            options.get("to") == INT8 and not isinstance(workers, str | None) and len(workers) > 1,
            "--to int8 plans for one worker, and several are given.",
            "Give one --trt-worker.",
        ),
        (
            "webgpu" in options.get("target", ()) and low == "bf16",
            "--target webgpu does not work with --to bf16: WebGPU has no BF16.",
            "Give --to fp16, or leave the target out.",
        ),
        (
            "only" in named and options.get("to", "fp16") != "fp16",
            "--only fp16 does not work with --to " + str(options.get("to")) + ".",
            "Leave --to out.",
        ),
        (
            "sm" in named and "rtx" not in options.get("target", ()),
            "--sm does not apply without --target rtx.",
            "Give --target rtx too.",
        ),
        (
            "allow_bf16" in named and options.get("to") == "bf16",
            "--allow bf16 adds BF16 to FP16 plans; with --to bf16 every node already has it.",
            "Give one of the two.",
        ),
        (
            "metric" in named and named & Thresholds.__annotations__.keys(),
            "--metric replaces the error thresholds, so they cannot be combined.",
            "Give either a metric or thresholds.",
        ),
        (
            "strict" in named
            and bool(named & Acceptance.__annotations__.keys() - {"strict", "failing"}),
            "--strict is a tolerance of its own: 1 % of each output's largest value.",
            "Leave out other tolerances and the metric, or leave out --strict.",
        ),
        (
            "metric_drop" in named and metric == AUTO,
            "--metric-drop does not apply to --metric auto: each metric has its own.",
            "Leave it out, or name a metric.",
        ),
        (
            "metric_drop" in named and "metric" not in named,
            "--metric-drop does not apply without --metric.",
            "Give --metric too.",
        ),
        (
            "heldout_labels" in named and "heldout" not in named,
            "--heldout-labels does not apply without --heldout.",
            "If the held-out samples are split off from --inputs, their labels come from --labels.",
        ),
        (
            "heldout" in named and len(unlabelled) == 1 and not named & _BY_ERROR,
            "The metric needs labels for the inputs and the held-out samples, but "
            f"{', '.join(unlabelled)} is missing.",
            "Give both --labels and --heldout-labels, or neither.",
        ),
    )
    for wrong, message, hint in refused:
        if wrong:
            raise UsageError(message, hint)


INT8 = "int8"
"""The value of `to` for INT8."""


def low_of(options: Mapping[str, Any]) -> str:
    """Return the low format; for INT8, the format next to it."""
    lowest = str(options.get("to", default("to")))
    return FP16.name if lowest == INT8 else lowest


def named_metric(criterion: Criterion) -> Metric | None:
    """Return a criterion's metric; one that must see the outputs first is not usable yet.

    Raises:
        UsageError: there is no metric of that name.
        CaseError: the function cannot be loaded.
    """
    if criterion.metric is None:
        return None
    if has_to_see(criterion):
        return _unsettled
    if metric := settled_metric(criterion) or resolve(criterion.metric):
        return metric
    if ":" not in criterion.metric:
        raise UsageError(
            f"Unknown metric {criterion.metric!r}.",
            f"{meant(criterion.metric, (AUTO, *BUILT_IN))} Give one of "
            f"{', '.join((AUTO, *BUILT_IN))}, or file.py:function.".strip(),
        )
    return _checked(criterion.metric)


def not_run(option: str, value: str) -> UsageError:
    """Return the error for code that only a run folder names: the folder may come from anyone."""
    return UsageError(
        f"The run was made with {spelt(option, value)}; code named only by a run folder is never "
        "run.",
        f"If you trust it, give it yourself: {spelt(option, shlex.quote(value))}.",
    )


def with_settled_metric(case: Case, runtime: Runtime) -> Case:
    """Return the case with the metric that FP32's outputs decide, and report what they look like.

    The FP32 model runs on the inspected samples. If it fails, or outputs no tensor, the metric
    "auto" gives way to the default tolerance: later users of the reference report why.

    Raises:
        UsageError: see `settle`.
        CaseError: the labels do not fit.
    """
    if not has_to_see(case.criterion):
        return case
    samples, labels = case.calibration, case.calibration.labels
    unseen = case
    if case.criterion.metric == AUTO:
        unseen = replace(case, criterion=Criterion(failing=case.criterion.failing), metric=None)
    try:
        model = case.network.model
        probe = ExtremaProbe(model, observable(model), runtime=runtime)
        results = [probe.run(samples[0])]
        first: Outputs = results[0][0]
        if not all(isinstance(array, np.ndarray) for array in first.values()):
            return unseen
        results += [probe.run(samples[i]) for i in range(1, looked_at(first, len(samples)))]
    except (CaseError, RunFailed):
        return unseen
    references: list[Outputs] = [outputs for outputs, _ in results]
    seen = Seen(model, samples.ids[: len(results)], tuple(results), probe)
    seen_as = (case.criterion, references, case.input_shapes, case.suppressed)
    criterion = settle(*seen_as, labelled=labels is not None)
    for one in criterion.recognised:
        check_labels(one.metric, (*(labels or ()), *(case.heldout.labels or ())))
    notes = (*case.notes, *_notes(criterion.recognised))
    metric = named_metric(criterion)
    return replace(case, criterion=criterion, metric=metric, notes=notes, seen=seen)


def without_outputs(case: Case, lacking: Collection[str]) -> Case:
    """Return the case with a metric of the remaining outputs.

    Raises:
        CaseError: the metric used none of them.
    """
    recognised = case.criterion.recognised
    remaining = tuple(one for one in recognised if not any(name in lacking for name in one.outputs))
    if len(remaining) == len(recognised):
        return case
    if not remaining:
        raise CaseError(
            f"The metric needs output {listed(recognised[0].outputs)}, which the candidate lacks.",
            "Give a candidate that has it, or choose a metric for the outputs that it has.",
        )
    criterion = replace(case.criterion, recognised=remaining)
    return replace(case, criterion=criterion, metric=named_metric(criterion))


def _notes(recognised: Sequence[Recognised]) -> Iterator[Note]:
    for outputs, alike in by_outputs(recognised).items():
        facts: dict[str, Fact] = {
            "kind": alike[0].kind,
            "outputs": outputs,
            "metrics": tuple(one.metric for one in alike),
            "evidence": alike[0].evidence,
        }
        yield Note(kind="recognised", facts=facts)


def _unsettled(
    _reference: Sequence[Outputs], _candidate: Sequence[Outputs], _labels: Sequence[Any] | None
) -> float:
    raise CaseError(
        "Choosing a metric needs the outputs of the FP32 model, which did not run on the samples.",
        "Name a metric that does not depend on them.",
    )


def _checked(name: str) -> Metric:
    """Return a user's function, checked to return a number."""
    function = load_function(name)

    def checked(
        reference: Sequence[Outputs], candidate: Sequence[Outputs], labels: Sequence[Any] | None
    ) -> float:
        try:
            value = function(_read_only(reference), _read_only(candidate), labels)
        except CaseError:
            if _looks(candidate) == _looks(reference):
                raise
            # Not every function handles other shapes or NaN: such outputs are as bad as none.
            return -inf
        try:
            if isinstance(value, str | bytes):
                raise TypeError("text is not a number")
            return float(value)
        except RAISED as error:
            raise CaseError(
                f"The metric {name} returned {type(value).__name__}, not one number "
                f"({described(error)}).",
                "It is called as function(reference, candidate, labels) and must return a float; "
                "higher is better.",
            ) from error

    return checked


def _read_only(results: Sequence[Outputs]) -> list[Outputs]:
    """Return read-only outputs: a function that writes into them fails and changes nothing."""
    shown: list[Outputs] = []
    for outputs in results:
        views = {name: array.view() for name, array in outputs.items()}
        for view in views.values():
            view.flags.writeable = False
        shown.append(views)
    return shown


def _looks(results: Sequence[Outputs]) -> list[tuple[str, tuple[int, ...], bool]]:
    """Return the name and shape of every output, and whether it is finite."""
    return [
        (name, array.shape, array.dtype.kind != "f" or bool(np.isfinite(array).all()))
        for outputs in results
        for name, array in outputs.items()
    ]
