"""The declaration of an option."""

from collections.abc import Sequence
from math import inf
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from msgspec import Struct

from halfwise.errors import UsageError
from halfwise.wording import either, typed


class Domain(Struct, frozen=True):
    """Which numbers an option takes; never NaN or infinity.

    Attributes:
        expected: The domain in words.
        low: The smallest.
        high: The largest.
    """

    expected: str
    low: float = 0
    high: float = inf


NOT_NEGATIVE = Domain("a finite number ≥ 0")
COUNT = Domain("a number from 1 to 1000", 1, 1000)
SECONDS = Domain("a finite number of seconds above 0", 1e-3)


class Option(Struct, frozen=True):
    """An option's declaration apart from its name and type, in `Annotated[type, …]`.

    The first type of a union is the one that a shell gives; a `Literal` lists all values.

    Attributes:
        about: Its meaning; `{}` is replaced by the default, which else follows at the end.
        metavar: Placeholder of its value in the help.
        default: Its value if not given; None if that is not fixed.
        domain: Domain of a number.
        panel: Its section of the help.
        flag: Its name on the command line, if not derived from the library's name.
        group: The option of the command line that takes it as NAME=VALUE, or as NAME if it is a
            bool; None if it is an option of its own. NAME is `flag`, else the library's name.
        main: Whether `--help` shows it; `--help-all` shows every option.
    """

    about: str
    metavar: str | None = None
    default: str | float | None = None
    domain: Domain | None = None
    panel: str | None = None
    flag: str | None = None
    group: str | None = None
    main: bool = False

    @property
    def help(self) -> str:
        """Its meaning, with its default."""
        if self.default is None:
            return self.about
        usual = self.default if isinstance(self.default, str) else typed(self.default)
        text = self.about if "{}" in self.about else f"{self.about} Default {{}}."
        return text.replace("{}", usual)

    @property
    def documented(self) -> str:
        """The help, and the domain of a number."""
        return f"{self.help} Takes {self.domain.expected}." if self.domain else self.help


def option(hint: Any) -> Option:  # noqa: ANN401 - a type
    """Return what `Annotated[type, Option(…)]` declares."""
    declared: Option = hint.__metadata__[0]
    return declared


def shell_type(hint: Any) -> Any:  # noqa: ANN401 - a type
    """Return the type of a value from a shell: the first of a union."""
    kind = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    return get_args(kind)[0] if get_origin(kind) in (Union, UnionType) else kind


def share(word: str | float) -> float | None:
    """Return a number or a percentage, such as `0.05` or `5%`, as a number; None if it is none."""
    digits = str(word).removesuffix("%")
    try:
        value = float(digits) / (1 if digits == str(word) else 100)
    except ValueError:
        return None
    return value if 0 <= value < inf else None


def check_value(name: str, hint: Any, value: Any) -> None:  # noqa: ANN401 - as declared
    """Check the value of an option against its type and domain; None is not given.

    Raises:
        UsageError: a number outside its domain, or a word that is not listed.
    """
    declared, kind = option(hint), shell_type(hint)
    domain = declared.domain
    if value is None:
        return
    if domain and not (abs(value) < inf and domain.low <= value <= domain.high):
        what = f"{shown(name, declared)} is {typed(value)}"
        raise UsageError(f"{what}; expected {domain.expected}.", declared.help)
    one = get_args(kind)[0] if get_origin(kind) is Sequence else kind
    for each in value if isinstance(value, list | tuple) else (value,):
        if get_origin(one) is Literal and each not in get_args(one):
            what = f"{shown(name, declared)} is {each!r}"
            raise UsageError(f"{what}; expected {either(get_args(one))}.", declared.help)


def shown(name: str, declared: Option | None = None, value: str | None = None) -> str:
    """Return how the command line gives an option: `--rel-max 0.1`, `--require cosine=0.9`.

    Args:
        name: Its name in the library.
        declared: Its declaration, if it has one.
        value: Its value; without one, the name alone: `--rel-max`, `--require cosine`.
    """
    flag = (declared and declared.flag) or name.replace("_", "-")
    if declared is None or declared.group is None:
        words = [flag if flag.startswith("-") else f"--{flag}", *([] if value is None else [value])]
    else:
        words = [declared.group, flag if value is None else f"{flag}={value}"]
    return " ".join(words)
