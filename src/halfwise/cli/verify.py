"""`halfwise verify`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from halfwise.cli.options import (
    Acceptance,
    Arithmetic,
    BuildLimit,
    Data,
    InputsOption,
    JsonOption,
    Labels,
    Running,
    Workers,
    accepts,
)
from halfwise.cli.outcome import conclude
from halfwise.cli.required import Required
from halfwise.cli.waiting import Waiting
from halfwise.errors import PASSED, VERDICT_FAILED, BackendMissing, UsageError

_WORKERS = ("trt_python", "trt_command", "trt_worker")


_Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Floating-point ONNX model; with --target, a run folder.",
        show_default=False,
    ),
]
_Candidate = Annotated[
    Path | None,
    typer.Argument(
        metavar="CANDIDATE",
        help="Mixed, FP16 or BF16 model, TensorRT engine, or outputs on record: Polygraphy's "
        ".json, or .npz.",
        show_default=False,
    ),
]
_Runner = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Whose outputs to judge, where several runners' are recorded; its beginning is "
        "enough.",
    ),
]


@accepts(Labels, Data, Acceptance, Required, Arithmetic, Running, Workers, BuildLimit, Waiting)
def command(
    model: _Model,
    inputs: InputsOption,
    candidate: _Candidate = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="RUN", help="Folder to make for the record."),
    ] = None,
    *,
    runner: _Runner = None,
    target: Annotated[
        Literal["tensorrt"] | None,
        typer.Option(
            help="Build the plan of a run folder on every worker that is named, and judge there."
        ),
    ] = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Judge a mixed, FP16 or BF16 model, an engine, or outputs of one, against the FP32 model."""
    from halfwise import api
    from halfwise.reporting.terminal import TerminalWatcher

    if target is not None:
        given = {"CANDIDATE": candidate, "--out": out, "--runner": runner}
        _repeat(model, inputs, given, options, as_json=as_json)
    if candidate is None:
        raise UsageError(
            f"Nothing is given to judge against {model}.",
            "Give a candidate: verify MODEL CANDIDATE --inputs DATA; or, to repeat a run, verify "
            "RUN --target tensorrt --inputs DATA.",
        )
    with TerminalWatcher() as watcher:
        run = api.verify(
            model,
            candidate,
            inputs,
            out=out,
            watcher=watcher,
            runner=runner,
            **_with_one_worker(options),
        ).run
    conclude(run, as_json=as_json)


def _with_one_worker(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with one worker in place of lists; a list of several has no meaning."""
    named = [word for name in _WORKERS for word in options.get(name, ())]
    if len(named) > 1:
        raise UsageError(
            f"{len(named)} workers are named, and one judges an engine.",
            "Name one; several repeat a run: verify RUN --target tensorrt.",
        )
    return {n: v[0] if n in _WORKERS else v for n, v in options.items() if n != "build_timeout"}


def _repeat(
    folder: Path,
    inputs: str,
    unfit: dict[str, Any],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Judge the plan of a run on several workers; exit as all of them together ended."""
    from halfwise import api
    from halfwise.reporting.pieces import repeated
    from halfwise.reporting.terminal import TerminalWatcher, print_report

    known = {
        "build_timeout",
        "run_timeout",
        "wait_timeout",
        *_WORKERS,
        *api.RepeatOptions.__annotations__,
    }
    unfit = {
        **unfit,
        **{f"--{n.replace('_', '-')}": v for n, v in options.items() if n not in known},
    }
    if given := next((name for name, value in unfit.items() if value is not None), None):
        raise UsageError(
            f"{given} has no meaning with --target: the plan and what is acceptable are the run's.",
            "Leave it out, or leave --target out to judge a candidate.",
        )
    with TerminalWatcher() as watcher:
        found = api.verify_run(folder, inputs, watcher=watcher, **options)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_report(repeated(found))
    if not found.usable:
        raise typer.Exit(BackendMissing.exit_code)
    raise typer.Exit(PASSED if found.passed else VERDICT_FAILED)
