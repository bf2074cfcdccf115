"""Commands that end with a verdict: fix, verify, diagnose, demo; and report, which shows one."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from halfwise import api
from halfwise.cli.options import (
    Display,
    InputsOption,
    MaybeInputsOption,
    ModelArgument,
    RunArgument,
    accepts,
    conclude,
    end,
    watched,
)
from halfwise.declarations.options import (
    Acceptance,
    Arithmetic,
    Building,
    Choice,
    Data,
    Devices,
    Gate,
    Heldout,
    Labels,
    Low,
    Lowest,
    OneDevice,
    Plan,
    Rungs,
    RunLimit,
    Running,
    Target,
    Targets,
    TaskMetric,
    TensorRt,
    Unjudged,
    Worker,
    Worth,
)
from halfwise.errors import UsageError
from halfwise.wording import command

if TYPE_CHECKING:
    pass

_RunOption = Annotated[
    Path, typer.Option("-o", "--out", metavar="RUN", help="Run folder to create.")
]


@accepts(
    *(Heldout, Labels, Data, Acceptance, Worth, Unjudged, Lowest, Plan, Arithmetic, Running),
    *(Targets, Target, Worker, Devices, Building, "build_timeout", RunLimit),
    full=True,
)
def fix(
    model: ModelArgument,
    inputs: InputsOption,
    out: _RunOption,
    *,
    display: Display,
    **options: Any,
) -> None:
    """Find what FP16, BF16 or INT8 breaks, repair it or keep it in FP32, and judge the result."""
    stored = watched(display, api.fix, model, inputs, out=out, **options)
    conclude(stored.run, display, out)


_PACKAGE = Path(api.__file__).parent
_EXAMPLE = next(
    filter(Path.is_dir, (_PACKAGE / "digits", _PACKAGE.parents[1] / "examples" / "digits")),
    _PACKAGE,
)
"""The bundled example: part of the wheel, and beside `src` in the repository."""


@accepts()
def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder to create.")
    ] = Path("demo"),
) -> None:
    """Fix a bundled model that reads handwritten digits: what halfwise does, in ten seconds."""
    from halfwise.store import new_folder

    names = ("model.onnx", "inputs.npz", "heldout.npz")
    with new_folder(out) as folder:
        for name in names:
            shutil.copyfile(_EXAMPLE / name, folder / name)
    model, inputs, heldout = (out / name for name in names)
    run = out / "run"
    words = ("fix", model, "--inputs", inputs, "--heldout", heldout, "-o", run)
    typer.echo(f"$ {command('halfwise', *words)}")
    stored = watched(Display(), api.fix, model, inputs, heldout=heldout, out=run)
    conclude(stored.run, Display(full=False), run)


_ExpectedOption = Annotated[
    str | None,
    typer.Option(
        "--expected",
        metavar="FILE",
        help="What the framework computes on the inputs: an .npz file.",
    ),
]


@accepts(
    *(Heldout, Labels, Data, Acceptance, Worth, Unjudged, Rungs, Plan, Arithmetic, Running),
    *(Targets, Target, Worker, Devices, Building, "build_timeout", RunLimit),
    full=True,
)
def ladder(
    model: ModelArgument,
    inputs: InputsOption,
    out: _RunOption,
    *,
    expected: _ExpectedOption = None,
    display: Display,
    **options: Any,
) -> None:
    """Judge FP32, TF32, FP16 (or BF16) and INT8 in turn; deliver the fastest that passes."""
    stored = watched(display, api.ladder, model, inputs, out=out, expected=expected, **options)
    conclude(stored.run, display, out)


@accepts(
    *(
        Labels,
        Data,
        Acceptance,
        Unjudged,
        Low,
        "budget",
        "time_budget",
        Arithmetic,
        Running,
        RunLimit,
    ),
    *(TensorRt, Target, Worker, Building),
    full=True,
)
def diagnose(
    model: ModelArgument,
    inputs: InputsOption,
    out: _RunOption,
    *,
    expected: _ExpectedOption = None,
    inputs_b: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="The same samples, from a second pipeline."),
    ] = None,
    preprocess_b: Annotated[
        str | None,
        typer.Option(metavar="FILE:FUNCTION", help="The second pipeline's --preprocess."),
    ] = None,
    display: Display,
    **options: Any,
) -> None:
    """Find the first thing that is wrong: inputs, export, model, precision, kernels."""
    stored = watched(
        display,
        api.diagnose,
        model,
        inputs,
        out=out,
        expected=expected,
        inputs_b=inputs_b,
        preprocess_b=preprocess_b,
        **options,
    )
    conclude(stored.run, display, out)


@accepts(
    *(Labels, Data, Acceptance, Worth, Gate, Unjudged, Arithmetic, Running, Targets),
    *(Worker, "build_timeout", RunLimit),
    full=True,
)
def verify(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="ONNX model in floating point; or a run folder, whose file is judged again.",
            show_default=False,
        ),
    ],
    candidate: Annotated[
        Path | None,
        typer.Argument(
            metavar="CANDIDATE",
            help="Mixed, FP16, BF16 or quantised model, TensorRT engine, or saved outputs (.npz).",
            show_default=False,
        ),
    ] = None,
    inputs: MaybeInputsOption = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="RUN", help="Run folder to create."),
    ] = None,
    *,
    display: Display,
    **options: Any,
) -> None:
    """Judge a mixed or low-precision model, an engine, or saved outputs against FP32."""
    if "tensorrt" not in options.get("target", ()):
        options.pop("build_timeout", None)
    stored = watched(display, api.verify, model, candidate, inputs, out=out, **options)
    conclude(stored.run, display, out)


@accepts(Choice, Heldout, Labels, Data, TaskMetric, Unjudged, Running, RunLimit, full=True)
def choose(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="OUT", help="Run folder to create."),
    ] = None,
    *,
    inputs: MaybeInputsOption = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model of the run, if it has moved."),
    ] = None,
    display: Display,
    **options: Any,
) -> None:
    """Take another plan of a run without a new search: judge it and write its model."""
    stored = watched(display, api.choose, run, out=out, inputs=inputs, model=model, **options)
    if out is None:
        typer.echo("nothing was written: -o OUT writes the model and the report", err=True)
    conclude(stored.run, display, out)


@accepts(OneDevice, full=True)
def report(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="File for --html."),
    ] = None,
    *,
    html: Annotated[
        bool, typer.Option("--html", help="Write report.html again instead of printing.")
    ] = False,
    display: Display,
    **options: Any,
) -> None:
    """Show the report of a run again, or write its HTML page. Exits with that run's code."""
    from halfwise.store import lost_model
    from halfwise.wording import clean

    if out is not None and not html:
        raise UsageError("--out names the HTML page, but --html is not given.", "Add --html.")
    stored = api.report(run, **options)
    if lost := lost_model(run, stored):
        typer.echo(clean(f"warning: {lost} no longer exists"), err=True)
    if html:
        from halfwise.page.document import write_page

        page = write_page(run, out, **options)
        if not display.as_json:
            typer.echo(clean(str(page)))
            end(passed=stored.verdict.passed)
    conclude(stored, display, run)
