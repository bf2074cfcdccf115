"""Commands that check, rewrite or export a model, or check its inputs."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from halfwise import api
from halfwise.cli.options import (
    Display,
    InputsOption,
    ModelArgument,
    RunnerOption,
    accepts,
)
from halfwise.cli.outcome import end, show, watched
from halfwise.declarations.options import (
    Arithmetic,
    Building,
    Data,
    Low,
    Reading,
    Running,
    Thresholds,
    Waiting,
    Worker,
)

_Pipeline = "Output of {}: .npz, .npy or a folder of them; or its function, file.py:function."


@accepts()
def lint(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.", show_default=False)],
    trt_version: Annotated[
        str | None,
        typer.Option(metavar="V", help="TensorRT version that will parse it, such as 8.6."),
    ] = None,
    fail_on: Annotated[
        Literal["error", "warning", "info"],
        typer.Option(help="Exit with 10 if something this severe or worse is found."),
    ] = "error",
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Skip a rule. Repeatable.")
    ] = None,
    *,
    display: Display,
) -> None:
    """Name known faults of a model and how to fix them, without running it."""
    from halfwise.linting.command import linted
    from halfwise.records import SEVERITIES

    record = watched(
        lambda watcher: api.lint(
            model, trt_version=trt_version, ignore=ignore or (), watcher=watcher
        ),
        display,
        name="lint",
    )
    show(record, linted, display)
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    end(passed=all(finding.severity not in counted for finding in record.findings))


@accepts(Data, Low, Running, "run_timeout", full=True)
def observe(
    model: ModelArgument,
    inputs: InputsOption,
    *,
    limit: Annotated[
        float, typer.Option(metavar="LIMIT", help="Smallest magnitude to list.", min=0)
    ] = 10_000,
    display: Display,
    **options: Any,
) -> None:
    """List the tensors that are large or not finite in FP32 on real inputs."""
    from halfwise.reporting.engines import observed

    record = watched(
        lambda watcher: api.observe(model, inputs, watcher=watcher, **options),
        display,
    )
    show(record, lambda each: observed(each, limit), display)


@accepts(Data, Arithmetic, Running, Waiting, Worker, "max_builds", Building, full=True)
def compare(
    model: ModelArgument,
    inputs: InputsOption,
    b: Annotated[
        str,
        typer.Option(
            "--b",
            metavar="SOURCE",
            help="The other side: ort, ort:optimised, emulation[:fp16|bf16|tf32|FILE.onnx], "
            "engine[:fp32|tf32|fp16|bf16], another ONNX file, or saved outputs (.npz, .json).",
            show_default=False,
        ),
    ],
    a: Annotated[str, typer.Option("--a", metavar="SOURCE", help="The side to trust.")] = "ort",
    *,
    runner: RunnerOption = None,
    display: Display,
    **options: Any,
) -> None:
    """Find the node where two computations of a model diverge."""
    from halfwise.reporting.diagnosis import comparison

    sides = {"a": a, "b": b, "runner": runner, **options}
    record = watched(lambda watcher: api.compare(model, inputs, watcher=watcher, **sides), display)
    show(record, comparison, display)
    end(passed=not record.different)


@accepts(Reading, Running, "run_timeout")
def modernize(
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="NEW", help="ONNX file to write, with NEW.map.json next to it."
        ),
    ],
    inputs: Annotated[
        str,
        typer.Option(
            metavar="DATA",
            help="Real inputs, as for fix. Default: random numbers.",
            show_default=False,
        ),
    ] = "random",
    *,
    trt_version: Annotated[
        str,
        typer.Option(metavar="V", help="TensorRT version that will read it."),
    ] = "10.0",
    display: Display,
    **options: Any,
) -> None:
    """Raise the opset, make norms and GELUs one node each, and compare both models."""
    from halfwise.tools.modernize import modernized

    how = {"trt_version": trt_version, **options}
    record = watched(
        lambda watcher: api.modernize(model, out, inputs, watcher=watcher, **how), display
    )
    show(record, modernized, display)


@accepts(Data, Thresholds, "strict", Running)
def reduce(
    model: ModelArgument,
    inputs: InputsOption,
    fails: Annotated[
        str,
        typer.Option(
            metavar="CHECK",
            help="What fails: verdict (everything in FP16 is out of tolerance), run (ONNX Runtime "
            "fails or crashes), or a command with {model}, and {inputs} if it needs them, that "
            "does not exit with 0.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="NEW", help="ONNX file to write, with NEW.npz."),
    ],
    *,
    display: Display,
    **options: Any,
) -> None:
    """Write the smallest part of a model that still fails, with the numbers that it reads."""
    from halfwise.tools.reduce import reduced

    how = {"fails": fails, "out": out, **options}
    record = watched(lambda watcher: api.reduce(model, inputs, watcher=watcher, **how), display)
    show(record, reduced, display)


@accepts()
def compare_inputs(
    a: Annotated[str, typer.Argument(metavar="A", help=_Pipeline.format("pipeline A"))],
    b: Annotated[str, typer.Argument(metavar="B", help=_Pipeline.format("pipeline B"))],
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="RAW",
            help="Raw samples: a folder of images or .npy files (functions get the path); "
            "NAME=RAW,NAME=RAW for several inputs. If A and B are arrays, raw samples let "
            "halfwise name their resize kernels.",
        ),
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(
            "-o", "--code", metavar="FILE", help="Write Python that turns A into B to FILE."
        ),
    ] = None,
    *,
    display: Display,
) -> None:
    """Name what two preprocessing pipelines do differently. Exits with 10 if they differ."""
    from halfwise.tools.preprocessing.command import compared

    raw = {"samples": samples, "code": code}
    record = watched(lambda watcher: api.compare_inputs(a, b, watcher=watcher, **raw), display)
    show(record, compared, display)
    end(passed=record.same)
