"""The options of commands that build engines, by the same names in the library."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from halfwise.case import Case, EngineSettings
from halfwise.errors import UsageError
from halfwise.records import Prefer
from halfwise.store import refuse_irregular
from halfwise.tensorrt.profiles import profiles_from_options
from halfwise.tensorrt.workers import WorkerSpec, memory_bytes, resolve

TENSORRT = "tensorrt"
_HELP = "`halfwise COMMAND --help` explains the options."


class WorkerOptions(TypedDict, total=False):
    """Where TensorRT is.

    Attributes:
        trt_python: Interpreter that can import tensorrt.
        trt_command: Command that ends in one.
        trt_worker: Name of a worker in halfwise.toml.
        run_timeout: Seconds for one inference, and for one evaluation by ONNX Runtime.
        wait_timeout: Seconds for a GPU that another build has.
    """

    trt_python: str | Path | None
    trt_command: str | None
    trt_worker: str | None
    run_timeout: float
    wait_timeout: float


class BuildingOptions(WorkerOptions, total=False):
    """How an engine is built; see the command-line options of the same names.

    Attributes:
        typing: "weak" or "strong"; by default what the version prefers.
        min_shapes: trtexec's --minShapes, one per profile; profiles are those of the data without.
        opt_shapes: Likewise.
        max_shapes: Likewise.
        timing_cache: File that is read where it exists, and written.
        workspace: Largest workspace of one layer, such as "4G"; a bare number is MiB.
        optimization_level: 0 to 5.
        tactic_sources: Names, one or more separated by commas.
        plugin: Plugin libraries on the worker's side.
        tf32: Let FP32 nodes be TF32.
        build_timeout: Seconds for one build.
    """

    typing: Literal["weak", "strong"] | None
    min_shapes: Sequence[str]
    opt_shapes: Sequence[str]
    max_shapes: Sequence[str]
    timing_cache: str | Path | None
    workspace: str | int | None
    optimization_level: int | None
    tactic_sources: str | Sequence[str] | None
    plugin: Sequence[str]
    tf32: bool
    build_timeout: float


class EngineOptions(BuildingOptions, total=False):
    """Options that need TensorRT; see the command-line options of the same names.

    Attributes:
        target: "tensorrt": build engines, and judge in them.
        builds: Builds of the delivered plan in weak typing.
        max_builds: Builds that the search for a plan may use.
        prefer: "speed", "memory" or "exact": what decides between engines that are equally fast.
        resume: Go on after a run that ended early; what crashed is left out.
    """

    target: Literal["tensorrt"] | None
    builds: int
    max_builds: int
    prefer: Prefer
    resume: bool


@dataclass(frozen=True)
class Target:
    """Where engines are built, and how.

    Attributes:
        workers: Workers, best first; never none.
        settings: As far as the options tell it; `profiled` adds the profiles.
        shapes: Values of --minShapes, --optShapes and --maxShapes.
        resume: Whether to go on after a run that ended early.
    """

    workers: tuple[WorkerSpec, ...]
    settings: EngineSettings
    shapes: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    resume: bool

    def profiled(self, case: Case) -> EngineSettings:
        """Return the settings with the profiles that the options give; none without."""
        samples = case.calibration + case.heldout
        profiles = profiles_from_options(case.network, samples, *self.shapes)
        return replace(self.settings, profiles=profiles)


def understand_target(given: Mapping[str, Any]) -> Target | None:
    """Return the target that `given` names, or None.

    Raises:
        UsageError: an option without --target, or a value outside its domain.
    """
    _check(given)
    names = given.keys() & EngineOptions.__annotations__.keys()
    if given.get("target") is None:
        if names := names - {"run_timeout"}:
            option = "--" + min(names).replace("_", "-")
            raise UsageError(f"{option} has no meaning without --target tensorrt.", "Give both.")
        return None
    if given["target"] != TENSORRT:
        raise UsageError(f"--target is {given['target']!r}; expected {TENSORRT}.")
    return engine_target(given)


def engine_target(given: Mapping[str, Any]) -> Target:
    """Return where and how to build; errors are those of `understand_target`."""
    _check(given)
    named = {n: given[n] for n in ("trt_python", "trt_command", "trt_worker") if n in given}
    workers = resolve(**named, environment=os.environ)
    defaults = workers[0].defaults
    changed: dict[str, Any] = {
        name: getattr(defaults, name)
        for name in ("workspace_bytes", "optimization_level", "tactic_sources", "plugins")
    }
    for name in ("build_timeout", "run_timeout"):
        if (value := getattr(defaults, name)) is not None:
            changed[name] = value
    same = (
        *("typing", "optimization_level", "builds", "max_builds", "build_timeout", "run_timeout"),
        *("tf32", "prefer", "wait_timeout"),
    )
    changed |= {name: given[name] for name in same if name in given}
    if "timing_cache" in given:
        changed["timing_cache"] = _writable(Path(given["timing_cache"]), "--timing-cache")
    if "workspace" in given:
        changed["workspace_bytes"] = memory_bytes(given["workspace"], "--workspace")
    if "tactic_sources" in given:
        changed["tactic_sources"] = _words(given["tactic_sources"])
    if "plugin" in given:
        changed["plugins"] = _texts(given["plugin"])
    lists = (_texts(given.get(f"{at}_shapes", ())) for at in ("min", "opt", "max"))
    minimum, optimum, maximum = lists
    return Target(
        workers=tuple(workers),
        settings=EngineSettings(**changed),
        shapes=(minimum, optimum, maximum),
        resume=bool(given.get("resume", False)),
    )


def _writable(path: Path, option: str) -> Path:
    """Return `path`, a file that can be written: that is known before a build takes minutes."""
    refuse_irregular(path, option)
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"{option} {path} cannot be written in {folder.absolute()}.",
            "Name a file in a folder that exists.",
        )
    return path


def _words(value: str | Sequence[str]) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(word.strip().upper() for word in words if word.strip())


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def _check(given: Mapping[str, Any]) -> None:
    domains: dict[str, tuple[str, float, float]] = {
        "optimization_level": ("a number from 0 to 5", 0, 5),
        "builds": ("a number ≥ 1", 1, 1000),
        "max_builds": ("a number ≥ 1", 1, 1000),
        "build_timeout": ("a number of seconds above 0", 1e-3, float("inf")),
        "run_timeout": ("a number of seconds above 0", 1e-3, float("inf")),
        "wait_timeout": ("a number of seconds above 0", 1e-3, float("inf")),
    }
    for name, (expected, low, high) in domains.items():
        value = given.get(name)
        if value is not None and not (isfinite(value) and low <= value <= high):
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {value}; expected {expected}.", _HELP)
    if given.get("prefer", "speed") not in get_args(Prefer):
        expected = ", ".join(get_args(Prefer))
        raise UsageError(f"--prefer is {given['prefer']!r}; expected one of {expected}.", _HELP)
    if given.get("typing") not in (None, "weak", "strong"):
        raise UsageError(f"--typing is {given['typing']!r}; expected weak or strong.", _HELP)
