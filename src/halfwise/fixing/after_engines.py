"""What to do after a `fix` with engines: where the result is, and what may lead lower."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from halfwise.case import Case
from halfwise.options.options import Request
from halfwise.records import CauseKind, Engines, RungEnd

_DIAGNOSED = (
    *("preprocess", "labels", "seed", "allow_random", "max_abs", "rel_max", "snr_db", "cosine"),
    *("agreement", "metric", "metric_drop", "to", "accumulate", "device", "ort_library"),
    *("target", "trt_python", "trt_command", "trt_worker", "typing", "min_shapes", "opt_shapes"),
    *("max_shapes", "workspace", "optimization_level", "tactic_sources", "plugin"),
)
"""Options of `fix` that mean the same to `diagnose`."""
_SPELT = {"min_shapes": "minShapes", "opt_shapes": "optShapes", "max_shapes": "maxShapes"}
_GONE: Mapping[RungEnd, str] = {
    "lost": "The worker was lost, which tells nothing of {name} engines: when it answers,",
    "unfetched": "The {name} engine that passed could not be fetched:",
}
_OTHER_BUILDS = (
    "another --optimization-level (0 to 5), other --tactic-sources, or another version of TensorRT"
)


def diagnose_command(case: Case, request: Request, out: Path | None) -> str:
    """Return the `halfwise diagnose` of the same case on the same worker, quoted for a shell."""
    given = request.data.inputs
    inputs = str(given) if isinstance(given, str | Path) else "DATA"
    model = str(case.network.path) if case.network.path is not None else "MODEL"
    words = ["halfwise", "diagnose", model, "--inputs", inputs]
    for name in _DIAGNOSED:
        if name in request.given:
            words += _option(name, request.given[name])
    folder = Path("DIAGNOSIS") if out is None else out.with_name(f"{out.name}.diagnosis")
    return shlex.join([*words, "-o", str(folder)])


def delivered_next(out: Path | None) -> tuple[str, ...]:
    """Return what to do with the engine in the run folder `out`; None where there is none."""
    if out is None:
        return ()
    folder, engine = (shlex.quote(str(p)) for p in (out, out / "model.engine"))
    return (
        f"The engine is {engine}; it runs with that version of TensorRT on that kind of GPU.",
        f"For another: halfwise verify {folder} --target tensorrt --inputs DATA builds and judges "
        "it there.",
        f"To build it without halfwise: halfwise export {folder} --as trtexec (or python, cpp, "
        "polygraphy, json).",
    )


def lower_next(engines: Engines, case: Case) -> tuple[str, ...]:
    """Return what may lead to an engine of the low format, where none passed."""
    low = engines.rungs[-1] if engines.rungs else None
    if low is None or low.end in ("delivered", "slower", "not-preferred"):
        return ()
    kinds: tuple[CauseKind, ...] = tuple(cause.kind for cause in engines.causes)
    name = low.rung.upper()
    lines = []
    if low.end in _GONE:
        lines.append(
            f"{_GONE[low.end].format(name=name)} run the command again with -o of another folder; "
            "--start-from this one spares the search without engines."
        )
    if "no-engine" in kinds:
        model = case.network.path
        words = ["halfwise", "modernize", str(model or "MODEL")]
        words += ["-o", str(model.with_suffix(".modern.onnx") if model else "MODERN.onnx")]
        lines.append(
            f"For an {name} engine, build from a model whose norms are one node each: "
            f"{shlex.join(words)}"
        )
    if "ignored" in kinds and engines.typing == "weak":
        lines.append(
            "Constraints are not honoured: from TensorRT 10.0 on --typing strong lets the Casts of "
            "the model decide."
        )
    if {"no-engine", "not-run", "kernel"} & set(kinds):
        lines.append(f"For an {name} engine, try {_OTHER_BUILDS}.")
    if "kernel" in kinds:
        lines.append("Where kernels may sum in FP16, --accumulate fp16 emulates that.")
    shown = {number for cause in engines.causes for number in cause.builds}
    if "unknown" in kinds and any(b.config.tf32 for b in engines.builds if b.number in shown):
        lines.append("What is kept may compute in TF32: leave --tf32 out.")
    if {"no-effect", "unknown", "ignored"} & set(kinds) or not (kinds or low.end in _GONE):
        lines.append("Let the search for a plan use more builds: --max-builds N.")
    return tuple(lines)


def _option(name: str, value: str) -> list[str]:
    option = f"--{_SPELT.get(name, name.replace('_', '-'))}"
    if value == "True":
        return [option]
    several = (*_SPELT, "plugin", "ort_library")
    return [
        word for v in (value.split(", ") if name in several else [value]) for word in (option, v)
    ]
