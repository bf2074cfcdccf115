"""The options, sorted by use and checked against each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, get_args, get_origin

import onnx

from halfwise import declarations
from halfwise.case import Rules, Runtime, Settings
from halfwise.declarations import Inputs, Options, check, default, spelt
from halfwise.declarations.option import option, shell_type
from halfwise.declarations.options import Thresholds
from halfwise.emulation.budget import limited
from halfwise.errors import UsageError
from halfwise.formats import FP16, LOW_FORMATS
from halfwise.metrics import AUTO, SHARES, default_drop
from halfwise.options.engines import Target, one_worker, understand_target
from halfwise.progress import Silent, Watcher
from halfwise.records import Allowed, Criterion, RepairRule, RightBy
from halfwise.wording import typed

RULES: tuple[RepairRule, ...] = get_args(RepairRule)
ALL = "all"
"""Names every rule."""


def left_out(given: Mapping[str, Any]) -> tuple[RepairRule, ...]:
    """Return the rules that `no_repair` excludes, given singly or separated by commas.

    Raises:
        UsageError: there is no such rule.
    """
    names = [name.strip() for word in given.get("no_repair", ()) for name in word.split(",")]
    if unknown := [name for name in names if name not in (*RULES, ALL)]:
        raise UsageError(
            f"--no-repair is {unknown[0]!r}; expected a repair rule: {', '.join(RULES)}.",
            "Separate several rules with commas. Without a rule it turns off all repairs; then it "
            "must come last or before another option.",
        )
    return RULES if ALL in names else tuple(rule for rule in RULES if rule in names)


Model = str | Path | onnx.ModelProto
"""A path or a model in memory."""

P = ParamSpec("P")
R = TypeVar("R")
_LABELS = ("labels", "heldout_labels")


@dataclass(frozen=True)
class Data:
    """Where samples come from; fields as in `Options`."""

    inputs: Inputs
    heldout: Inputs | None = None
    preprocess: str | None = None
    labels: Path | None = None
    heldout_labels: Path | None = None
    allow_random: bool = False
    allow_unjudged: bool = False
    seed: int = default("seed")
    no_previews: bool = False


@dataclass(frozen=True)
class Request:
    """Options sorted by use.

    Attributes:
        data: For loading.
        criterion: For judging.
        settings: For the pipeline.
        start_from: Mixed model or run to start from.
        require_worth: Largest cost of a plan relative to everything low; None for any.
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
    require_worth: float | None = None
    target: Target | None = None
    ladder: bool = False
    right_by: RightBy | None = None
    command: str = ""


def understand(inputs: Inputs, options: Mapping[str, Any]) -> Request:
    """Return the options sorted and checked.

    Args:
        inputs: Where samples come from.
        options: `Options`.

    Raises:
        UsageError: an unknown option, or a value outside its domain.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        raise UsageError(
            f"Unknown option {', '.join(sorted(unknown))}.",
            f"Options: {', '.join(Options.__annotations__)}.",
        )
    given = one_worker(declarations.given(**options))
    for name, value in given.items():
        if isinstance(value, str | Path) and _is_list(name):
            given[name] = (value,)
    if given.get("no_repair") is True:
        given["no_repair"] = (ALL,)
    check(given)
    _check_means_something(given)
    _check_company(given)
    rules = {name: tuple(given[name]) for name in ("keep", "keep_op", "lower") if name in given}
    libraries = tuple(Path(path) for path in given.get("ort_library", ()))
    paths = {name: Path(given[name]) for name in _LABELS if name in given}
    return Request(
        data=Data(inputs, **_fields(Data, given) | paths),
        criterion=_criterion(given),
        settings=Settings(
            rules=Rules(**rules),
            fmt=LOW_FORMATS[low_of(given)],
            int8=given.get("to") == INT8,
            runtime=Runtime(given.get("device", default("device")), libraries),
            allow=frozenset(each for each in get_args(Allowed) if f"allow_{each}" in given),
            **_fields(Settings, given) | {"no_repair": left_out(given)},
        ),
        given={name: _text(value) for name, value in given.items()},
        require_worth=given.get("require_worth"),
        start_from=Path(given["start_from"]) if "start_from" in given else None,
        target=understand_target(given),
        ladder=given.get("to") == "int8",
    )


def _is_list(name: str) -> bool:
    return get_origin(shell_type(Options.__annotations__[name])) is Sequence


def _fields(kind: type[Data | Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: given[f.name] for f in fields(kind) if f.name in given}


def bounded(command: Callable[P, R]) -> Callable[P, R]:
    """Bound each evaluation of a command by its option `run_timeout`.

    The command's `watcher` is notified of slow ones.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        given = cast(dict[str, Any], kwargs)
        watcher: Watcher = given.get("watcher") or Silent()
        with limited(given.get("run_timeout"), tell=watcher.note, expect=watcher.expect):
            return command(*args, **kwargs)

    return run


def _criterion(given: Mapping[str, Any]) -> Criterion:
    criterion = Criterion(**{n: given[n] for n in Criterion.model_fields if n in given})
    if criterion.metric is None or "metric_drop" in given:
        return criterion
    usual = default_drop(criterion.metric, labelled=bool(given.keys() & _LABELS))
    if usual is not None:
        return criterion.model_copy(update={"metric_drop": usual.drop, "drop_source": usual.source})
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


def _check_means_something(given: Mapping[str, Any]) -> None:
    """Refuse criteria that zeros would pass whatever the model: they demand nothing."""
    zeros = {
        "rel_max": ("less than 1", 1.0, 1),
        "snr_db": ("more than 0", 0.0, -1),
        "cosine": ("more than 0", 0.0, -1),
        "agreement": ("more than 0", 0.0, -1),
    }
    for name, (expected, limit, sign) in zeros.items():
        if name in given and sign * given[name] >= sign * limit:
            raise UsageError(
                f"{spelt(name)} is {typed(given[name])}, which lets any model pass that outputs "
                f"zeros; expected {expected}.",
                option(Options.__annotations__[name]).help,
            )


def _check_company(given: Mapping[str, Any]) -> None:
    """Check that options come with those they need, and without conflicting ones."""
    asked = given.keys()
    low, io, metric = low_of(given), given.get("io"), given.get("metric")
    unlabelled = [spelt(name) for name in _LABELS if name not in given]
    refused = (
        (
            metric in SHARES and given.get("metric_drop", 0) >= 1,
            f"--metric-drop is {typed(given.get('metric_drop', 0))}, but {metric} is never above "
            "1, so this would let it drop to 0.",
            "Give less than 1; 0.01 is usual.",
        ),
        (
            io not in (None, "fp32", low),
            f"--io {io} does not work with --to {low}: a model has one low format.",
            f"Give --io fp32 or --io {low}.",
        ),
        (
            low == "bf16" and given.get("accumulate") == "fp16",
            "--accumulate fp16 does not work with --to bf16: tensor cores accumulate BF16 products "
            "only in FP32.",
            "Leave --accumulate out.",
        ),
        (
            "allow_bf16" in asked and given.get("to") == "bf16",
            "--allow bf16 adds BF16 to FP16 plans; with --to bf16 every node already has it.",
            "Give one of the two.",
        ),
        (
            "metric" in asked and asked & Thresholds.__annotations__.keys(),
            "--metric replaces the error thresholds, so they cannot be combined.",
            "Give either a metric or thresholds.",
        ),
        (
            "metric_drop" in asked and metric == AUTO,
            "--metric-drop does not apply to --metric auto: each metric has its own.",
            "Leave it out, or name a metric.",
        ),
        (
            "metric_drop" in asked and "metric" not in asked,
            "--metric-drop does not apply without --metric.",
            "Give --metric too.",
        ),
        (
            "heldout_labels" in asked and "heldout" not in asked,
            "--heldout-labels does not apply without --heldout.",
            "If the held-out samples are split off from --inputs, their labels come from --labels.",
        ),
        (
            {"metric", "heldout"} <= asked and len(unlabelled) == 1,
            "The metric needs labels for the inputs and the held-out samples, but "
            f"{', '.join(unlabelled)} is missing.",
            "Give both --labels and --heldout-labels, or neither.",
        ),
    )
    for wrong, message, hint in (*refused, *_refused_int8(given)):
        if wrong:
            raise UsageError(message, hint)


INT8 = "int8"
"""The value of `to` for INT8."""


def low_of(given: Mapping[str, Any]) -> str:
    """Return the low format; for INT8, the format next to it."""
    lowest = str(given.get("to", default("to")))
    return FP16.name if lowest == INT8 else lowest


def _refused_int8(given: Mapping[str, Any]) -> Iterator[tuple[bool, str, str]]:
    """Yield possible contradictions: whether they occur, the message, the hint."""
    int8 = given.get("to") == INT8
    workers = given.get("trt_worker")
    yield (
        int8 and not isinstance(workers, str | None) and len(workers) > 1,
        "--to int8 plans for one worker, and several are given.",
        "Give one --trt-worker.",
    )
