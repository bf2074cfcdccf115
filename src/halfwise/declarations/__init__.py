"""Every option, declared once: name, type, help, default, domain, and panel in the help.

The library's typed keywords and checks, the commands' parameters, and the defaults are made from
these declarations. Importing them is fast.
"""

from collections.abc import Mapping
from typing import Any

from halfwise.declarations.option import check_value, option, shown
from halfwise.declarations.options import (
    Acceptance,
    Arithmetic,
    Building,
    Choice,
    Data,
    Heldout,
    Inputs,
    Labels,
    Limits,
    Lowest,
    Plan,
    RunLimit,
    Running,
    Target,
    Targets,
    TaskMetric,
    Unjudged,
    Worker,
)

__all__ = [
    "BuildingOptions",
    "ChooseOptions",
    "EngineOptions",
    "Inputs",
    "Options",
    "WorkerOptions",
    "check",
    "default",
    "given",
    "spelt",
]


class WorkerOptions(Worker, RunLimit, total=False):
    """Where TensorRT is."""


class BuildingOptions(WorkerOptions, Building, Limits, total=False):
    """How an engine is built."""


class EngineOptions(BuildingOptions, Target, total=False):
    """Options that need TensorRT."""


class Options(
    EngineOptions,
    Targets,
    Heldout,
    Labels,
    Data,
    Acceptance,
    Unjudged,
    Lowest,
    Plan,
    Arithmetic,
    Running,
    total=False,
):
    """Every option."""


class ChooseOptions(
    Choice, Heldout, Labels, Data, TaskMetric, Unjudged, Running, RunLimit, total=False
):
    """Options of `choose`; those not given are as in the run.

    Code that the run named must be named again: a metric, `preprocess`, and libraries.
    """


def _documented(*kinds: type) -> None:
    """Append the meaning of its options to each kind's docstring."""
    for kind in kinds:
        options = {name: option(hint) for name, hint in kind.__annotations__.items()}
        lines = (f"        {name}: {each.documented}" for name, each in options.items())
        kind.__doc__ = "\n".join([f"{kind.__doc__}", "", "    Attributes:", *lines])


_documented(WorkerOptions, BuildingOptions, EngineOptions, Options, ChooseOptions)


def default(name: str) -> Any:  # noqa: ANN401 - as it is declared
    """Return the default of the option of that name."""
    return option(Options.__annotations__[name]).default


def spelt(name: str, value: str | None = None) -> str:
    """Return how the command line gives an option of the library: see `shown`."""
    hint = Options.__annotations__.get(name)
    return shown(name, None if hint is None else option(hint), value)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are given: not None, not False, not an empty list."""
    # 0 equals False, and a budget of 0 is one.
    return {n: v for n, v in options.items() if v not in (None, (), []) and v is not False}


def check(options: Mapping[str, Any]) -> None:
    """Check options, by name; None is not given.

    Raises:
        UsageError: a number outside its domain, or a word that is not listed.
    """
    for name, value in options.items():
        if name in Options.__annotations__:
            check_value(name, Options.__annotations__[name], value)
