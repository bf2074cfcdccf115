"""The commands: those that end with a verdict, then those about a model, inputs or an engine."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

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
    show,
    watched,
)
from halfwise.declarations import given, spelt
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
    Reading,
    Rungs,
    RunLimit,
    Running,
    Target,
    Targets,
    TaskMetric,
    TensorRt,
    Thresholds,
    Unjudged,
    Worker,
)
from halfwise.errors import UsageError
from halfwise.wording import clean, command, count

_RunOption = Annotated[
    Path, typer.Option("-o", "--out", metavar="RUN", help="Run folder to create.")
]


@accepts(
    *(Heldout, Labels, Data, Acceptance, Unjudged, Lowest, Plan, Arithmetic, Running),
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
    *(Heldout, Labels, Data, Acceptance, Unjudged, Rungs, Plan, Arithmetic, Running),
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
    *(Labels, Data, Acceptance, Gate, Unjudged, Arithmetic, Running, Targets),
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


@accepts()
def lint(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.", show_default=False)],
    target: Annotated[
        Literal["rtx"] | None, typer.Option(help="What TensorRT for RTX builds.")
    ] = None,
    trt_version: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="Version of TensorRT (8.6) or TensorRT for RTX (1.7) that will parse it.",
        ),
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
    from halfwise.linting import linted
    from halfwise.records import SEVERITIES

    options = {"target": target, "trt_version": trt_version, "ignore": ignore or ()}
    record = watched(display, api.lint, model, **options, name="lint")
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

    record = watched(display, api.observe, model, inputs, **options)
    show(record, lambda each: observed(each, limit), display)


@accepts(Data, Arithmetic, Running, RunLimit, Worker, Building, full=True)
def compare(
    model: ModelArgument,
    inputs: InputsOption,
    b: Annotated[
        str,
        typer.Option(
            "--b",
            metavar="SOURCE",
            help="The other side: ort, ort:optimised, emulation[:fp16|bf16|tf32|FILE.onnx], "
            "engine[:fp32|tf32|fp16|bf16], another ONNX file, or saved outputs (.npz).",
            show_default=False,
        ),
    ],
    a: Annotated[str, typer.Option("--a", metavar="SOURCE", help="The side to trust.")] = "ort",
    *,
    display: Display,
    **options: Any,
) -> None:
    """Find the node where two computations of a model diverge."""
    from halfwise.reporting.diagnosis import comparison

    record = watched(display, api.compare, model, inputs, a=a, b=b, **options)
    show(record, comparison, display)
    end(passed=not record.different)


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

    record = watched(display, api.reduce, model, inputs, fails=fails, out=out, **options)
    show(record, reduced, display)


_AHEAD = {"sm", "preprocess", "min_shapes", "opt_shapes", "max_shapes"}
"""Options of a build with TensorRT for RTX."""


@accepts(Reading, Worker, Building, "build_timeout", RunLimit)
def build(
    model: ModelArgument,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="ENGINE", help="Engine file to write.")
    ],
    inputs: MaybeInputsOption = None,
    *,
    to: Annotated[
        Literal["fp32", "fp16", "bf16"] | None,
        typer.Option(help="Lowest type the builder may use (weak typing). Default fp32."),
    ] = None,
    target: Annotated[
        Literal["tensorrt", "rtx"],
        typer.Option(help="rtx: TensorRT for RTX, ahead of time; nothing is run."),
    ] = "tensorrt",
    sm: Annotated[
        str | None,
        typer.Option(metavar="SM86", help="Compute capability for rtx. Default SM86."),
    ] = None,
    display: Display,
    **options: Any,
) -> None:
    """Build a TensorRT engine and show the precision of its layers."""
    from halfwise.reporting.engines import ahead, built

    options |= given(to=to, sm=sm)
    kinds = {"tensorrt": {"sm"}, "rtx": options.keys() - _AHEAD}
    if others := sorted(kinds[target] & options.keys()):
        raise UsageError(
            f"{spelt(others[0])} does not apply to --target {target}.", "Leave it out."
        )
    if target == "tensorrt":
        record = watched(display, api.build, model, out, inputs=inputs, **options)
        show(record, built, display)
        return
    made = watched(display, api.build_ahead, model, out, inputs=inputs, **options)
    show(made, ahead, display)
    end(passed=not made.folded)


@accepts(Reading, Worker, RunLimit)
def inspect(
    engine: Annotated[Path, typer.Argument(metavar="ENGINE", help="Engine file.")],
    model: Annotated[
        Path | None,
        typer.Option(metavar="M", help="Its ONNX model; shows precision node by node."),
    ] = None,
    inputs: MaybeInputsOption = None,
    *,
    display: Display,
    **options: Any,
) -> None:
    """Show a TensorRT engine: inputs, outputs, layers, precision, speed."""
    from halfwise.reporting.engines import looked_into

    record = watched(display, api.inspect, engine, model=model, inputs=inputs, **options)
    show(record, looked_into, display)


@accepts(Labels, Data, Acceptance, full=True)
def migrate(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A trtexec command, or a file: a trtexec log, a shell script, or a Python script "
            "that builds with tensorrt. Functions and loops of a Python script run: give only one "
            "that you trust.",
            show_default=False,
        ),
    ],
    inputs: InputsOption,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder to create.")],
    *,
    model: Annotated[
        Path | None, typer.Option(metavar="M", help="Its ONNX model, if SOURCE names none.")
    ] = None,
    display: Display,
    **options: Any,
) -> None:
    """Write the typed model that a weakly typed build of TensorRT 10 meant, and judge it."""
    if source[0].endswith(".py"):
        typer.echo(f"Note: functions of {source[0]} run, and loops that set precisions", err=True)
    made = watched(display, api.migrate, source, inputs, out=out, model=model, **options)
    for dropped in made.dropped:
        typer.echo(f"Warning: {dropped}", err=True)
    if not display.as_json:
        kept = count(len(made.fp32), "node")
        typer.echo(f"{kept} in FP32; build it with: {command(*made.command)}")
    conclude(made.result.run, display, out / "run")


@accepts()
def explain_log(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Log of trtexec or another builder; - reads standard input."
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="M", help="Its ONNX model; shows the nodes that the log names."),
    ] = None,
    *,
    display: Display,
) -> None:
    """Explain a TensorRT build log: each known message in one sentence, with its nodes."""
    from halfwise.tools.explain_log import explained

    record = api.explain_log(sys.stdin.buffer if str(file) == "-" else file, model=model)
    show(record, explained, display)
    end(passed=all(finding.severity != "error" for finding in record.findings))


@accepts(OneDevice, "min_shapes", "opt_shapes", "max_shapes")
def export(
    run: RunArgument,
    kind: Annotated[
        Literal["trtexec", "python", "cpp", "json", "weights"],
        typer.Option("--as", help="Kind of recipe; or weights: what the repairs change in them."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="PATH",
            help="Folder, or a file that ends in .sh, .py, .json or, for weights, .safetensors. "
            "Default: standard output.",
        ),
    ] = None,
    trt_version: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="TensorRT version that will build: 8.5 to 11. Default: that of the run's engines, "
            "else 10.16.",
        ),
    ] = None,
    typing: Annotated[
        Literal["weak", "strong"] | None,
        typer.Option(
            help="weak: layer constraints; strong: Casts in the model. Default: weak for 8.x, else "
            "strong."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The run's model, if it has moved; for weak typing or weights."
        ),
    ] = None,
    state_dict: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For weights: the module's state dict, as safetensors; written whole. Default: "
            "only what changes, by its names in the ONNX model.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Write a recipe that builds the engine of a run without halfwise, or its repaired weights."""
    recipe = given(trt_version=trt_version, typing=typing)
    if kind != "weights" and state_dict is not None:
        raise UsageError(f"--as {kind} takes no --state-dict.", "Give --as weights.")
    if kind == "weights" and (recipe or options.keys() - {"trt_worker"}):
        raise UsageError(
            "--as weights takes no --trt-version, --typing or --engine.", "Leave them out."
        )
    options |= given(model=model) | recipe
    if kind == "weights":
        options |= given(state_dict=state_dict)
        made = watched(Display(), api.export_weights, run, out=out, name="export", **options)
        texts, written, notes = [made.table], made.written, made.notes
    else:
        exported = watched(Display(), api.export, run, kind, out=out, name="export", **options)
        texts, written = [*exported.texts.values()], exported.written
        notes = exported.recipe.notes
        if out is None and len(texts) > 1:
            raise UsageError(
                f"This recipe has {len(texts)} files: {', '.join(exported.texts)}.",
                "Name a folder with -o.",
            )
    if out is None:
        typer.echo(texts[0], nl=False)
    for path in written:
        typer.echo(clean(f"written: {path}"))
    for note in notes:
        typer.echo(clean(f"note: {note}"), err=True)


@accepts(Worker)
def doctor(
    *,
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure what targets compute in FP16, for later runs.")
    ] = False,
    **options: Any,
) -> None:
    """Show the versions and devices that a run depends on, targets, and every TensorRT worker."""
    from halfwise.reporting.terminal import print_facts

    print_facts(watched(Display(), api.doctor, name="doctor", probe=probe, **options))
