"""What commands share: parameters made from the declared options, progress, and how they end.

Parameters have no defaults here: an option not given is not passed on, so the library's default
applies.
"""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
)

import typer
from typer.core import TyperCommand, TyperOption

from halfwise.declarations import Options, given
from halfwise.declarations.option import option, shell_type, shown
from halfwise.errors import PASSED, VERDICT_FAILED, UsageError
from halfwise.progress import Silent
from halfwise.wording import argument, command, either, typed

if TYPE_CHECKING:
    from halfwise.records import Run
    from halfwise.records.record import Record
    from halfwise.reporting.parts import Report

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="ONNX model in floating point.", show_default=False)
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, as named with -o.")]
_inputs = typer.Option(
    metavar="DATA",
    help="Real inputs: an .npz, .npy or Polygraphy .json file, a folder, NAME=FOLDER,NAME=FOLDER "
    "for several inputs, file.py:function, or the word random.",
    show_default=False,
    rich_help_panel="Data",
)
InputsOption = Annotated[str, _inputs]
MaybeInputsOption = Annotated[str | None, _inputs]


class Display(NamedTuple):
    """What a command prints: a first screen, or one of these.

    Attributes:
        as_json: The record as JSON.
        full: The whole report; None if there is no shorter one.
        quiet: Only the verdict, and no progress.
    """

    as_json: bool = False
    full: bool | None = None
    quiet: bool = False


_DISPLAY = {
    "as_json": ("--json", "Print only the record, as JSON."),
    "full": ("--full", "Print the whole report, not one screen of it."),
    "quiet": ("--quiet", "Print only the verdict, on one line; no progress."),
}
MANY = 12
"""Of more options than this, `--help` shows the main ones only."""


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with every option."""
    if wanted:
        hidden = [p for p in context.command.params if isinstance(p, TyperOption) and p.hidden]
        for param in hidden:
            param.hidden = False
        typer.echo(context.get_help())
        for param in hidden:
            param.hidden = True
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            help="Show every option and exit.",
            callback=_show_all,
            is_eager=True,
            expose_value=False,
        ),
    ],
)


def accepts(
    *groups: type | str, full: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's `**options` and `display` by options.

    The command receives the given ones in `options`.

    Args:
        groups: Classes that declare options, and names of single ones.
        full: Whether it prints one screen unless asked for the whole report.
    """
    declared: dict[str, Any] = {}
    for group in groups:
        one = {group: Options.__annotations__[group]} if isinstance(group, str) else {}
        declared |= one or group.__annotations__
    grouped = _grouped(declared)
    single = {n: hint for n, hint in declared.items() if option(hint).group is None}

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        displays = "display" in signature.parameters
        shows = [name for name in _DISPLAY if displays and (full or name != "full")]
        many = len(single) + len(grouped) + len(signature.parameters) + len(shows) > MANY
        offered = [
            *(parameter(n, h, hidden=many and not option(h).main) for n, h in single.items()),
            *(_group_parameter(flag, members, hidden=many) for flag, members in grouped.items()),
        ]
        printed = [_display_parameter(name, hidden=many and name != "full") for name in shows]

        @wraps(command)
        def run(*, help_all: bool = False, **values: Any) -> None:
            del help_all  # It ended the run.
            passed = given(**{p.name: values.pop(p.name, None) for p in offered})
            for flag, members in grouped.items():
                passed |= _members(flag, members, passed.pop(_group_name(flag), ()))
            if printed:
                passed["display"] = Display(**{p.name: values.pop(p.name) for p in printed})
            command(**values, **passed)

        parameters = list(signature.parameters.values())
        ordered = [
            *(p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD),
            *offered,
            *(p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "display"),
            *printed,
            *([_HELP_ALL] if many else []),
        ]
        # Typer reads the signature to learn a command's options.
        run.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
        return run

    return declare


class Command(TyperCommand):
    """A command that says what is wrong with its words as all of halfwise does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer's context
        """Return the remaining words.

        Raises:
            UsageError: a value is empty, or of the wrong type.
        """
        _refuse_empty(args, _valued(ctx.command.params))
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if misread := _misread(error):
                raise misread from error
            raise


def _valued(params: Sequence[Any]) -> set[str]:
    """Return the names of the options whose value is the next word."""
    options = (p for p in params if isinstance(p, TyperOption) and not p.is_flag)
    return {name for option in options for name in option.opts}


def _refuse_empty(words: Sequence[str], valued: Collection[str]) -> None:
    """Refuse an empty word, mostly a shell variable that is not set: as a path it means ".".

    Args:
        words: The command line.
        valued: Names of the options whose value is the next word.
    """
    for before, word in zip(("", *words), words, strict=False):
        name, equals, value = word.partition("=")
        if not word or (name.startswith("--") and equals and not value):
            option = name or (before if before in valued else "An argument")
            raise UsageError(
                f"{option} is empty; expected a value.", "If it is a shell variable, set it."
            )


def _misread(error: typer.BadParameter) -> UsageError | None:
    """Return the error for a value of the wrong type, from that of Typer; None if it is another."""
    param, reason = error.param, error.__cause__
    if not isinstance(param, TyperOption) or not isinstance(reason, ValueError):
        return None
    errors: list[Any] = getattr(reason, "errors", list)()
    if not errors:
        return None
    kinds = get_args(param.type_descriptor.annotation) or (param.type_descriptor.annotation,)
    choices = [kind for kind in kinds if isinstance(kind, str)]
    number = "an integer" if int in kinds else "a number"
    least = errors[0].get("ctx", {}).get("ge")
    expected = (
        either(choices) if choices else number + (f" ≥ {typed(least)}" if least is not None else "")
    )
    name = max(param.opts, key=len)
    return UsageError(f"{name} is {errors[0]['input']!r}; expected {expected}.", param.help or "")


def parameter(name: str, hint: Any, *, hidden: bool = False) -> inspect.Parameter:  # noqa: ANN401
    """Return the parameter from which Typer makes an option; None means not given.

    Args:
        name: Its name in the library.
        hint: Its declaration.
        hidden: Whether only `--help-all` shows it.
    """
    declared, kind = option(hint), shell_type(hint)
    if get_origin(kind) is Sequence:
        # Typer takes no list of listed words; `check` looks at them.
        one = shell_type(get_args(kind)[0])
        kind = list[str if get_origin(one) is Literal else one]  # type: ignore[misc]
    flag = declared.flag or (shown(name) if kind is bool else None)
    make = partial(typer.Option, flag) if flag else typer.Option
    return _keyword(
        name,
        kind,
        make(
            metavar=declared.metavar,
            help=declared.help,
            rich_help_panel=declared.panel,
            hidden=hidden,
        ),
    )


def _display_parameter(name: str, *, hidden: bool) -> inspect.Parameter:
    flag, about = _DISPLAY[name]
    made = typer.Option(flag, help=about, rich_help_panel="Output", hidden=hidden)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, made],
    )


def _keyword(name: str, kind: Any, made: Any) -> inspect.Parameter:  # noqa: ANN401 - Typer's
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, made]
    )


Members = dict[str, tuple[str, Any]]
"""Options that one option of the command line takes as NAME=VALUE: by NAME, the library's name and
the declaration."""


def _grouped(declared: Mapping[str, Any]) -> dict[str, Members]:
    """Return the options of each `Option.group`, by that."""
    grouped: dict[str, Members] = {}
    for name, hint in declared.items():
        if flag := option(hint).group:
            _, key = shown(name, option(hint)).split()
            grouped.setdefault(flag, {})[key] = (name, hint)
    return grouped


def _group_name(flag: str) -> str:
    return flag.removeprefix("--")


def _group_parameter(flag: str, members: Members, *, hidden: bool) -> inspect.Parameter:
    """Return the parameter of a group; its help lists the members."""
    names = [
        f"{key}: {option(hint).help}"
        if shell_type(hint) is bool
        else f"{key}={_wanted(hint)}: {option(hint).help}"
        for key, (_, hint) in members.items()
    ]
    plain = all(shell_type(hint) is bool for _, hint in members.values())
    made = typer.Option(
        flag,
        metavar="NAME" if plain else "NAME=X",
        help="\n\n".join(("Repeatable.", *names)),
        rich_help_panel=option(next(iter(members.values()))[1]).panel,
        hidden=hidden,
    )
    return _keyword(_group_name(flag), list[str], made)


def _wanted(hint: Any) -> str:  # noqa: ANN401 - as declared
    """Return a placeholder of a value, or the words to choose from."""
    kind = shell_type(hint)
    return "|".join(get_args(kind)) if get_origin(kind) is Literal else option(hint).metavar or "X"


def _members(flag: str, members: Members, words: Iterable[str]) -> dict[str, Any]:
    """Return the options that a group's words give, by the library's names.

    Names without a value may share a word, separated by commas.

    Raises:
        UsageError: there is no such name, or its value is missing, superfluous or no number.
    """
    passed: dict[str, Any] = {}
    for part in (p for word in words for p in ([word] if "=" in word else word.split(","))):
        key, equals, text = (each.strip() for each in part.partition("="))
        if key not in members:
            raise UsageError(
                f"{flag} {key} is unknown; expected {either(tuple(members))}.",
                f"Give {flag} NAME or {flag} NAME=VALUE; repeat it for several.",
            )
        name, hint = members[key]
        kind, help_ = shell_type(hint), option(hint).help
        if kind is bool:
            if equals:
                raise UsageError(f"{flag} {key} takes no value.", help_)
            passed[name] = True
        elif not text:
            raise UsageError(
                f"{flag} {key} has no value.", f"{flag} {key}={_wanted(hint)}: {help_}"
            )
        elif get_origin(kind) is Sequence:
            passed.setdefault(name, []).append(text)
        elif kind in (int, float):
            try:
                passed[name] = kind(text)
            except ValueError:
                number = "an integer" if kind is int else "a number"
                raise UsageError(f"{flag} {key} is {text!r}; expected {number}.", help_) from None
        else:
            passed[name] = kind(text) if kind is Path else text
    return passed


WHOLE = "This is only part of the report; --full prints all of it."
"""Printed below a partial report that is not stored."""

R = TypeVar("R")
Shown = TypeVar("Shown", bound="Record")


def watched(
    display: Display,
    call: Callable[..., R],
    *arguments: object,
    name: str = "start",
    **options: Any,
) -> R:
    """Return the result of a function of the library, with a watcher that shows progress.

    Args:
        display: What to print.
        call: The function; its option `watcher` receives the progress.
        arguments: Its arguments.
        name: What the bar says until the call reports a stage.
        options: Its other options.
    """
    if display.quiet:
        return call(*arguments, watcher=Silent(), **options)
    from halfwise.reporting.terminal import TerminalWatcher

    with TerminalWatcher(name) as watcher:
        return call(*arguments, watcher=watcher, **options)


def show(
    record: Shown,
    view: "Callable[[Shown], Report]",
    display: Display,
    screen: "Callable[[Shown], Report] | None" = None,
    more: str = WHOLE,
) -> None:
    """Print a record as JSON, or the report that `view` makes of it.

    Args:
        record: The record.
        view: Makes the whole report.
        display: What to print.
        screen: Makes the first screen; None if that is the beginning of the report.
        more: Where the rest is.
    """
    from halfwise.reporting.terminal import fitted, print_report, print_verdict

    if display.as_json:
        typer.echo(record.to_json(indent=1))
    elif display.quiet:
        print_verdict(view(record))
    elif display.full is False:
        whole = (screen or view)(record)
        shown = fitted(whole, more)
        print_report(shown, more * (screen is not None or shown != whole))
    else:
        print_report(view(record))


def end(*, passed: bool) -> NoReturn:
    """End the command with the exit code of a verdict."""
    raise typer.Exit(PASSED if passed else VERDICT_FAILED)


def conclude(run: "Run", display: Display, folder: Path | None) -> NoReturn:
    """Print the run and exit with 0 where its verdict passed, else 10.

    `folder` is the run folder; None if it is not stored.
    """
    from halfwise.reporting.view import report, screen
    from halfwise.store import run_json

    if display.as_json:
        typer.echo(run_json(run), nl=False)
    else:
        show(run, report, display, screen, _more(folder))
    end(passed=run.verdict.passed)


def _more(folder: Path | None) -> str:
    """Return where to find the whole report."""
    if folder is None:
        return WHOLE
    page = folder / "report.html"
    where = f", or open {argument(page)}" if page.is_file() else ""
    return f"Whole report: {command('halfwise', 'report', folder, '--full')}{where}"
