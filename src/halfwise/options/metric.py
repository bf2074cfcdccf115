"""The metric that the user named: built in, a function, or decided by the model's outputs."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from halfwise.case import Case, Runtime, Seen
from halfwise.declarations import spelt
from halfwise.emulation.probe import ExtremaProbe, observable
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.inputs import load_function
from halfwise.metrics import (
    AUTO,
    BUILT_IN,
    Metric,
    Outputs,
    by_outputs,
    check_labels,
    has_to_see,
    resolve,
    settle,
    settled_metric,
)
from halfwise.metrics.kinds import looked_at
from halfwise.records import Criterion, Fact, Note, Recognised
from halfwise.user_code import RAISED, described
from halfwise.wording import listed, meant


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


def function_again(recorded: str, named: str | None) -> str:
    """Return the function that judged a run, as the user names it now.

    Args:
        recorded: Its name in the run folder, `file.py:function`.
        named: The name that the user gives now.

    Raises:
        UsageError: it is not named, or another one is.
    """
    if named is None:
        raise not_run("metric", recorded)
    if Path(named).name != Path(recorded).name:
        raise UsageError(
            f"--metric is {named}, but the run was judged by {recorded}.",
            "Give the same function; its file may be elsewhere.",
        )
    return named


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
    criterion = settle(case.criterion, references, case.input_shapes, labelled=labels is not None)
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
    criterion = case.criterion.model_copy(update={"recognised": remaining})
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
