"""Where engines are built, and how: made of the options."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from halfwise.case import Case, EngineSettings
from halfwise.declarations import EngineOptions, check, spelt
from halfwise.declarations.engines import Worker
from halfwise.errors import UsageError
from halfwise.store import refuse_irregular
from halfwise.tensorrt.profiles import profiles_from_options
from halfwise.tensorrt.workers import WorkerDefaults, WorkerSpec, memory_bytes, resolve

TENSORRT = "tensorrt"


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
    if given.get("target") is not None:
        return engine_target(given)
    check(given)
    if names := given.keys() & EngineOptions.__annotations__.keys() - {"target", "run_timeout"}:
        raise UsageError(
            f"{spelt(min(names))} has no meaning without --target tensorrt.", "Give both."
        )
    return None


def engine_target(given: Mapping[str, Any]) -> Target:
    """Return where and how to build; errors are those of `understand_target`."""
    check(given)
    given, _ = split(given, EngineOptions)
    named, _ = split(given, Worker)
    workers = resolve(**named)
    lists = (_texts(given.get(f"{at}_shapes", ())) for at in ("min", "opt", "max"))
    minimum, optimum, maximum = lists
    return Target(
        workers=tuple(workers),
        settings=engine_settings(given, workers[0].defaults),
        shapes=(minimum, optimum, maximum),
        resume=bool(given.get("resume", False)),
    )


def split(options: Mapping[str, Any], kind: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that are declared by `kind`, as far as they are given, and the others."""
    names = kind.__annotations__.keys()
    declared = {n: v for n, v in options.items() if n in names and v is not None}
    return declared, {n: v for n, v in options.items() if n not in names}


def engine_settings(given: Mapping[str, Any], defaults: WorkerDefaults) -> EngineSettings:
    """Return settings: what was given, else what a worker's own table in halfwise.toml says.

    Raises:
        UsageError: a value outside its domain.
    """
    check(given)
    changed = {name: value for name, value in asdict(defaults).items() if value is not None}
    changed |= {f.name: given[f.name] for f in fields(EngineSettings) if f.name in given}
    if "timing_cache" in given:
        changed["timing_cache"] = _writable(Path(given["timing_cache"]), "--timing-cache")
    if "workspace" in given:
        changed["workspace_bytes"] = memory_bytes(given["workspace"], "--workspace")
    if "tactic_sources" in given:
        changed["tactic_sources"] = _words(given["tactic_sources"])
    if "plugin" in given:
        changed["plugins"] = _texts(given["plugin"])
    return EngineSettings(**changed)


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
