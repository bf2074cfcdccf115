"""The command line: options in, reports and exit codes out.

Commands import the library when they run, so `halfwise --help` does not wait for it.
"""

import gc
import sys
from importlib.metadata import version
from signal import SIG_UNBLOCK, SIGINT, pthread_sigmask
from typing import Annotated

import typer

from halfwise import deferred, memory
from halfwise.cli import engines, models, verdicts
from halfwise.cli.options import Command
from halfwise.cli.surroundings import Ended, demand_folder, surroundings, usage_error
from halfwise.errors import CaseError, HalfwiseError
from halfwise.interruption import interruption
from halfwise.wording import clean, size_of

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells report it."""

LONGEST_MESSAGE = 800
"""Largest number of characters shown of an error or hint."""

OBJECTS_PER_COLLECTION = 100_000
"""Objects allocated between two garbage collections, instead of 700.

Graphs of thousands of nodes are millions of long-lived objects. At 1,500 nodes collection took half
of the time outside ONNX Runtime; now it takes little, for 8 % more memory.
"""

COLLECTIONS = (20, 50)
"""Young collections before a middle one, and middle ones before a full one, instead of 10 and 10:
at 5,000 nodes a fifth of that time, and 5 % more memory.
"""

app = typer.Typer(
    name="halfwise",
    add_completion=False,
    no_args_is_help=True,
    epilog="Exit codes: 0 passed; 10 failed, or something found; 2 wrong command line; 3 model or "
    "inputs cannot be used; 4 library or device missing; 5 build or export failed; 6 run failed; 7 "
    "run folder, record or engine damaged, or of another version or model; 128 + N ended by signal "
    "N.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Verdicts come first, then diagnosis, model preparation, and engines; Typer lists groups last.
inputs = typer.Typer(no_args_is_help=True, help="Compare two preprocessing pipelines.")
inputs.command("compare")(models.compare_inputs)
constraints = typer.Typer(
    no_args_is_help=True, help="Check precision constraints in trtexec's notation."
)
# trtexec's options are part of the input.
constraints.command("check", context_settings={"ignore_unknown_options": True})(
    engines.check_constraints
)
for command in (
    *(
        verdicts.fix,
        verdicts.ladder,
        verdicts.choose,
        verdicts.verify,
        verdicts.report,
        verdicts.diagnose,
    ),
    *(models.lint, models.compare, models.observe, models.modernize),
    *(engines.build, engines.inspect, engines.explain_log, engines.export, engines.doctor),
):
    app.command(command.__name__.replace("_", "-"), cls=Command)(command)
app.add_typer(inputs, name="inputs")
app.add_typer(constraints, name="constraints")


def main() -> None:
    """Run the command line; always ends with `SystemExit` or a traceback."""
    gc.set_threshold(OBJECTS_PER_COLLECTION, *COLLECTIONS)
    deferred.defer_unused()
    memory.cap()
    with surroundings() as ended:
        _run(ended)


def _run(ended: Ended) -> None:
    try:
        # Blocked while this package was imported: see `halfwise.__main__`.
        pthread_sigmask(SIG_UNBLOCK, {SIGINT})
        demand_folder()
        try:
            app(prog_name="halfwise")
        finally:
            # Now, while a failure can still be reported.
            sys.stdout.flush()
    except HalfwiseError as error:
        _complain(error)
        sys.exit(error.exit_code)
    except OSError as error:
        message = usage_error(error)
        if message is None:
            raise
        _complain(message)
        sys.exit(message.exit_code)
    except MemoryError as error:
        _complain(_out_of_memory(error))
        sys.exit(CaseError.exit_code)
    except KeyboardInterrupt:
        _say(ended)
        sys.exit(ended.exit_code)
    except SystemExit as end:
        # Typer turns Ctrl-C into this exit code without a message.
        if end.code == INTERRUPTED:
            _say(ended)
            sys.exit(ended.exit_code)
        raise


def _complain(error: HalfwiseError) -> None:
    for title, text in (("error", error.message), ("hint", error.hint)):
        if text:
            # ONNX Runtime's messages span lines; indent all but the first.
            lines = "\n  ".join(clean(line) for line in _readable(text).splitlines())
            typer.echo(f"{title}: {lines}", err=True)


def _readable(text: str) -> str:
    """Return a text, cut in the middle if too long to read, as names may be."""
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} … {text[-half:]}"


def _out_of_memory(error: MemoryError) -> CaseError:
    free = memory.available()
    left = "" if free is None else f" ({size_of(free)} are available)"
    return CaseError(
        f"There is not enough memory{left}: {str(error) or 'an allocation failed'}.",
        "Give smaller files, or check the sizes that they declare.",
    )


def _say(ended: Ended) -> None:
    left = [path for path in interruption().left.values() if path.is_file()]
    for path in left:
        typer.echo(f"already proven: {clean(str(path))}", err=True)
    if left:
        typer.echo("to continue the run, give the same command with --resume", err=True)
    told = "interrupted" if ended.by == SIGINT else f"ended by {ended.by.name}"
    kept = left or interruption().asked
    typer.echo(told + " before there was a result; nothing was written" * (not kept), err=True)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"halfwise {version('halfwise')}")
        raise typer.Exit


@app.callback()
def _halfwise(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Get an ONNX model into FP16, BF16 or INT8 with outputs that are still right."""
