"""Where and how engines are built, from the options."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from halfwise.case import Case, EngineSettings
from halfwise.declarations import EngineOptions, check, spelt
from halfwise.errors import UsageError
from halfwise.records import replace
from halfwise.tensorrt.ports import profiles_from_options
from halfwise.tensorrt.worker import driver_version
from halfwise.tensorrt.workers import WorkerSpec, memory_bytes, resolve, target_command

TENSORRT = "tensorrt"


_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Names of workers that can be part of a file's name."""


class Target(Struct, frozen=True):
    """Where and how engines are built.

    Attributes:
        workers: Workers that one plan must be right on; one unless several are named.
        settings: Settings from the options; `profiled` adds the profiles.
        shapes: Values of minShapes, optShapes and maxShapes.
    """

    workers: tuple[WorkerSpec, ...]
    settings: EngineSettings
    shapes: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]

    @property
    def worker(self) -> WorkerSpec:
        """The only worker.

        Raises:
            UsageError: several are named.
        """
        if len(self.workers) > 1:
            raise UsageError(
                f"{len(self.workers)} workers are named, but this needs one.",
                "Name one; only halfwise fix finds a plan for several.",
            )
        return self.workers[0]

    def profiled(self, case: Case) -> EngineSettings:
        """Return the settings with the profiles of the options, if any."""
        samples = case.calibration + case.heldout
        profiles = profiles_from_options(case.network, samples, *self.shapes)
        return replace(self.settings, profiles=profiles)


def run_here(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options; engines of TensorRT for RTX are built and run where a GPU is.

    Then `rtx` is `tensorrt` with the Python of TensorRT for RTX as its worker, as nothing else
    differs. It builds ahead of time without a driver, for a given `sm`, and beside other engines.

    Raises:
        UsageError: see `target_command`.
    """
    targets = options.get("target") or ()
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    apart = options.keys() & {"sm", "trt_command", "trt_worker"} or TENSORRT in targets
    if "rtx" not in targets or apart or driver_version() is None:
        return dict(options)
    targets = tuple(TENSORRT if name == "rtx" else name for name in targets)
    command = shlex.join(target_command("rtx"))
    return {**options, "target": targets, "trt_command": command}


def understand_target(options: Mapping[str, Any]) -> Target | None:
    """Return the target that `options` names, or None.

    Raises:
        UsageError: an option without --target, or a value outside its domain.
    """
    if TENSORRT in options.get("target", ()):
        return engine_target(options)
    check(options)
    if names := options.keys() & EngineOptions.__annotations__.keys() - {"run_timeout"}:
        raise UsageError(
            f"{spelt(min(names))} does not apply without --target tensorrt.",
            "Give --target tensorrt too.",
        )
    return None


def engine_target(options: Mapping[str, Any]) -> Target:
    """Return where and how to build; errors as for `understand_target`."""
    check(options)
    options, _ = split(options, EngineOptions)
    return Target(
        workers=_workers(options),
        settings=_settings(options),
        shapes=(
            _texts(options.get("min_shapes", ())),
            _texts(options.get("opt_shapes", ())),
            _texts(options.get("max_shapes", ())),
        ),
    )


def _workers(options: Mapping[str, Any]) -> tuple[WorkerSpec, ...]:
    """Return the workers that one plan must be right on, at least one.

    Raises:
        UsageError: one is named twice, or is ambiguous in the run folder, or an option for one
            device is given with several.
    """
    given, command = options.get("trt_worker"), options.get("trt_command")
    names: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    if len(names) == 1:
        return (resolve(trt_command=command, trt_worker=names[0])[0],)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--trt-worker {twice} is given twice.", "Name each worker once.")
    if odd := next((name for name in names if not _FILE_NAME.fullmatch(name)), None):
        raise UsageError(
            f"--trt-worker {odd!r} cannot be part of a file name; with several workers, each "
            "engine file is named after its worker.",
            "Rename it in halfwise.toml, using letters, digits, '.', '_' and '-'.",
        )
    return tuple(resolve(trt_command=command, trt_worker=name)[0] for name in names)


def split(options: Mapping[str, Any], kind: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the given options that `kind` declares, and the others."""
    names = kind.__annotations__.keys()
    declared = {n: v for n, v in options.items() if n in names and v is not None}
    return declared, {n: v for n, v in options.items() if n not in names}


def _settings(options: Mapping[str, Any]) -> EngineSettings:
    changed = {n: options[n] for n in EngineSettings.__struct_fields__ if n in options}
    if "workspace" in options:
        changed["workspace_bytes"] = memory_bytes(options["workspace"], "--engine workspace")
    if "tactic_sources" in options:
        changed["tactic_sources"] = _words(options["tactic_sources"])
    if "plugin" in options:
        changed["plugins"] = _texts(options["plugin"])
    return EngineSettings(**changed)


def _words(value: str | Sequence[str]) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(word.strip().upper() for word in words if word.strip())


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))
