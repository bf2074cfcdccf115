"""The options of the commands, by the same names in the library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from halfwise.case import Rules, Runtime, Settings
from halfwise.errors import UsageError
from halfwise.formats import LOW_FORMATS
from halfwise.metrics import SHARES, default_drop
from halfwise.options.engines import EngineOptions, Target, understand_target
from halfwise.records import Criterion

Model = str | Path | onnx.ModelProto
"""A path or a model in memory."""
Inputs = str | Path | Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]]
"""A file, a folder, `file.py:function`, "random", or arrays in memory."""

HELP = "`halfwise COMMAND --help` explains the options."
_LABELS = ("labels", "heldout_labels")
_THRESHOLDS = ("max_abs", "rel_max", "snr_db", "cosine")


class Options(EngineOptions, total=False):
    """Every option, with the meaning and default of the command-line option of the same name.

    Those that need TensorRT are in `EngineOptions`.

    Attributes:
        heldout: Samples for the verdict; by default every fourth of the inputs.
        preprocess: `file.py:function` from an image's path to model inputs.
        labels: File with one label per sample of the inputs.
        heldout_labels: File with one label per held-out sample.
        allow_random: Accept random inputs.
        allow_unjudged: Accept a verdict although no sample tests an output, a body or the metric.
        seed: Seed of random inputs.
        max_abs: Largest absolute error.
        rel_max: Largest error over the largest reference value; 1e-2 where nothing is given.
        snr_db: Smallest signal-to-noise ratio in dB.
        cosine: Smallest cosine similarity.
        agreement: Smallest fraction of equal elements in integer and Boolean outputs.
        metric: Built-in task metric or `file.py:function`; decides alone.
        metric_drop: How far the metric may fall; by default what `metrics.drops` has for a built-in
            one, and a metric of the user's own needs it.
        require_worth: Largest cost over that of everything low; beyond it the verdict fails.
        keep: Node names, regular expressions, or "outputs".
        keep_op: Operator types.
        lower: Node names or regular expressions.
        start_from: Where the search starts: a mixed-precision ONNX model, a run folder or its
            run.json.
        keep_above: Keep producers of larger tensors instead of searching.
        to: "fp16" or "bf16", the low format.
        io: "fp32", or the low format, for float graph inputs and outputs; those that the model
            stores in the low format stay so.
        accumulate: "fp32" or "fp16" for sums inside FP16 ops.
        headroom: Factor on observed ranges, ≥ 1.
        margin: Fraction of the tolerance that the search may use, in (0, 1].
        time_budget: Seconds for the search.
        device: "cpu" or "cuda".
        ort_library: Custom operator libraries for ONNX Runtime.
    """

    heldout: Inputs | None
    preprocess: str | None
    labels: str | Path | None
    heldout_labels: str | Path | None
    allow_random: bool
    allow_unjudged: bool
    seed: int
    max_abs: float | None
    rel_max: float | None
    snr_db: float | None
    cosine: float | None
    agreement: float
    metric: str | None
    metric_drop: float
    require_worth: float | None
    keep: Sequence[str]
    keep_op: Sequence[str]
    lower: Sequence[str]
    start_from: str | Path | None
    keep_above: float | None
    to: Literal["fp16", "bf16"]
    io: Literal["fp32", "fp16", "bf16"]
    accumulate: Literal["fp32", "fp16"]
    headroom: float
    margin: float
    time_budget: float
    device: Literal["cpu", "cuda"]
    ort_library: Sequence[str | Path]


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
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """Options sorted by who needs them.

    Attributes:
        data: For loading.
        criterion: For judging.
        settings: For the pipeline.
        start_from: Mixed model or run to start from.
        require_worth: Largest cost of a plan over that of everything low; None for any.
        given: What was given, as text, for the record.
        target: Where engines are built; None for nowhere.
    """

    data: Data
    criterion: Criterion
    settings: Settings
    given: dict[str, str]
    start_from: Path | None = None
    require_worth: float | None = None
    target: Target | None = None


def understand(inputs: Inputs, options: Mapping[str, Any]) -> Request:
    """Return the options sorted and checked.

    Args:
        inputs: Where samples come from.
        options: `Options`.

    Raises:
        UsageError: an unknown option, or a value outside its domain.
    """
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise UsageError(
            f"Unknown option {', '.join(sorted(unknown))}.",
            f"Options: {', '.join(Options.__annotations__)}.",
        )
    # 0 equals False, and --seed 0 is a seed.
    given = {n: v for n, v in options.items() if v not in (None, (), []) and v is not False}
    for name in given.keys() & {"keep", "keep_op", "lower", "ort_library"}:
        if isinstance(given[name], str | Path):
            given[name] = (given[name],)
    _check_numbers(given)
    _check_means_something(given)
    _check_choices(given)
    _check_company(given)

    def among(*names: str) -> dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    paths: dict[str, Any] = {
        name: Path(value) for name, value in among("labels", "heldout_labels").items()
    }
    rules = Rules(
        **{name: tuple(value) for name, value in among("keep", "keep_op", "lower").items()}
    )
    return Request(
        data=Data(
            inputs,
            **among("heldout", "preprocess", "allow_random", "allow_unjudged", "seed"),
            **paths,
        ),
        criterion=_criterion(given),
        settings=Settings(
            rules=rules,
            fmt=LOW_FORMATS[given.get("to", "fp16")],
            runtime=Runtime(
                given.get("device", "cpu"), tuple(Path(p) for p in given.get("ort_library", ()))
            ),
            **among("keep_above", "io", "accumulate", "headroom", "margin", "time_budget"),
        ),
        given={name: _text(value) for name, value in given.items()},
        require_worth=given.get("require_worth"),
        start_from=Path(given["start_from"]) if "start_from" in given else None,
        target=understand_target(given),
    )


def _criterion(given: Mapping[str, Any]) -> Criterion:
    names = (*_THRESHOLDS, "agreement", "metric", "metric_drop")
    criterion = Criterion(**{name: given[name] for name in names if name in given})
    if criterion.metric is None or "metric_drop" in given:
        return criterion
    default = default_drop(criterion.metric, labelled=bool(given.keys() & _LABELS))
    if default is not None:
        return criterion.model_copy(
            update={"metric_drop": default.drop, "drop_source": default.source}
        )
    if ":" not in criterion.metric:
        # Who loads the metric says that there is none of that name.
        return criterion
    raise UsageError(
        f"How far {criterion.metric} may fall is not given, and only its author knows its scale.",
        "Give --metric-drop X, in its own unit: 0.01 of an accuracy is usual; 0 where it moves in "
        "steps and may take none.",
    )


def _text(value: object) -> str:
    if isinstance(value, str | Path | int | float):
        return str(value)
    if isinstance(value, Sequence) and all(isinstance(v, str | Path) for v in value):
        return ", ".join(str(v) for v in value)
    return f"in memory ({type(value).__name__})"


def _check_numbers(given: Mapping[str, Any]) -> None:
    domains: dict[str, tuple[str, float, float]] = {
        "max_abs": ("a number ≥ 0", 0, float("inf")),
        "rel_max": ("a number ≥ 0", 0, float("inf")),
        "snr_db": ("a number of dB", float("-inf"), float("inf")),
        "cosine": ("a number from −1 to 1", -1, 1),
        "agreement": ("a fraction from 0 to 1", 0, 1),
        "metric_drop": ("a number ≥ 0", 0, float("inf")),
        "require_worth": ("a number ≥ 0", 0, float("inf")),
        "keep_above": ("a number ≥ 0", 0, float("inf")),
        "headroom": ("a number ≥ 1", 1, float("inf")),
        "margin": ("a number above 0, at most 1", 1e-9, 1),
        "time_budget": ("a number of seconds ≥ 0", 0, float("inf")),
    }
    for name, (expected, low, high) in domains.items():
        value = given.get(name)
        if value is not None and not (isfinite(value) and low <= value <= high):
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {value}; expected {expected}.", HELP)


def _check_means_something(given: Mapping[str, Any]) -> None:
    """Refuse what an output of zeros would pass, whatever the model: then nothing is asked for."""
    zeros = {
        "rel_max": ("≥ 1", 1.0, 1, "an output of zeros is off by 1"),
        "snr_db": ("≤ 0", 0.0, -1, "an output of zeros has 0 dB"),
        "cosine": ("≤ 0", 0.0, -1, "an output of zeros has a cosine of 0"),
        "agreement": ("≤ 0", 0.0, -1, "an output that agrees nowhere passes"),
    }
    for name, (beyond, limit, sign, why) in zeros.items():
        if name in given and sign * given[name] >= sign * limit:
            raise UsageError(
                f"--{name.replace('_', '-')} is {given[name]}, and with {beyond} nothing is asked "
                f"for: {why}.",
                HELP,
            )
    shares = [metric for metric in SHARES if metric == given.get("metric")]
    if shares and given.get("metric_drop", 0) >= 1:
        raise UsageError(
            f"--metric-drop is {given['metric_drop']}, and {shares[0]} is never above 1: it may "
            "fall to nothing.",
            "Give less than 1; 0.01 is usual.",
        )


def _check_choices(given: Mapping[str, Any]) -> None:
    choices = {
        "to": tuple(LOW_FORMATS),
        "io": ("fp32", *LOW_FORMATS),
        "accumulate": ("fp32", "fp16"),
        "device": ("cpu", "cuda"),
    }
    for name, allowed in choices.items():
        if name in given and given[name] not in allowed:
            raise UsageError(
                f"--{name} is {given[name]!r}; expected {' or '.join(allowed)}.",
                HELP,
            )


def _check_company(given: Mapping[str, Any]) -> None:
    """Check that options stand beside those that they need, and beside no others."""
    _check_formats(given.get("to", "fp16"), given)
    if "metric" in given and given.keys() & {*_THRESHOLDS, "agreement"}:
        raise UsageError(
            "A metric decides alone, so no error threshold can stand beside --metric.",
            "Give either a metric or thresholds.",
        )
    if {"keep_above", "start_from"} <= given.keys():
        raise UsageError(
            "--keep-above searches nothing, so --start-from has no meaning beside it.",
            "Give one of the two.",
        )
    if "metric_drop" in given and "metric" not in given:
        raise UsageError("--metric-drop has no meaning without --metric.", "Give --metric too.")
    if "heldout_labels" in given and "heldout" not in given:
        raise UsageError(
            "--heldout-labels has no meaning without --heldout.",
            "Labels of samples that are split off are taken from --labels.",
        )
    missing = set(_LABELS) - given.keys()
    if {"metric", "heldout"} <= given.keys() and len(missing) == 1:
        raise UsageError(
            "The metric judges the inputs and the held-out samples alike, and "
            f"--{missing.pop().replace('_', '-')} is missing.",
            "Give both --labels and --heldout-labels, or neither.",
        )


def _check_formats(low: str, given: Mapping[str, Any]) -> None:
    if given.get("io", "fp32") not in ("fp32", low):
        raise UsageError(
            f"--io {given['io']} does not go with --to {low}: a model has one low format.",
            f"Give --io fp32 or --io {low}.",
        )
    if low == "bf16" and given.get("accumulate") == "fp16":
        raise UsageError(
            "--accumulate fp16 does not go with --to bf16: tensor cores add up BF16 products in "
            "FP32 only.",
            "Leave --accumulate out.",
        )
