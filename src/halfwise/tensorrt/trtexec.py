"""trtexec's notation of shapes and of precision constraints.

The notation is from `samples/common/sampleOptions.cpp` of TensorRT 8.5 to 10.16: an option and its
value are one word with `=` between; values are split at commas, which quotes do not protect; the
name is the text before and within one pair of single quotes or, without quotes, before the last
colon. Rank 0 is `a:` or, as from TensorRT 10 on, `a:scalar`.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from halfwise.errors import CaseError, UsageError
from halfwise.records import Profile, TensorName
from halfwise.wording import shorten

_UNSAYABLE = {",": "splits there", "'": "takes it for a quotation mark"}
"""How trtexec treats characters in a name; no quotes or escapes prevent that."""
OTHER_KIND = "Use --as python instead: it compares whole names."


def unsayable(name: str) -> str:
    """Return a character in a name that trtexec's notation cannot express; "" if there is none."""
    return next((character for character in _UNSAYABLE if character in name), "")


def quoted(name: str, what: str, *, always: bool = False) -> str:
    """Return a name as trtexec reads it back, quoted if it contains a colon or `always` is set.

    Raises:
        CaseError: the name is `unsayable`; `what` describes its owner in the message.
    """
    if character := unsayable(name):
        raise CaseError(
            f"trtexec cannot take the {what} {shorten(name)!r}: it contains a {character}, "
            f"and trtexec {_UNSAYABLE[character]}.",
            OTHER_KIND,
        )
    return f"'{name}'" if always or ":" in name else name


Shape = tuple[int, ...]

_INTEGER = re.compile(r"-?[0-9]{1,10}")
_LARGEST = 2**31 - 1
"""Sizes are 32-bit in TensorRT before 10; nothing larger would fit into memory."""


def parse_shapes(text: str, option: str) -> dict[TensorName, Shape]:
    """Return the shapes in `text` by input name, in its order.

    Negative numbers are accepted: the values of a shape tensor may be negative.

    Args:
        text: The value of the option.
        option: Its name, for errors.

    Raises:
        UsageError: no colon, no name, unbalanced quotes, a size that is no 32-bit integer, or
            a repeated name.
    """
    shapes: dict[TensorName, Shape] = {}
    for item in text.split(","):
        name, sizes = _split(item)
        if not name or sizes is None:
            raise UsageError(
                f"{option}: {item!r} is not a name, a colon and sizes.",
                f"Write it like trtexec: {option}=input:1x3x224x224,'name:0':1x8.",
            )
        if name in shapes:
            raise UsageError(f"{option} names input {name!r} twice.", "Give one shape per input.")
        shapes[TensorName(name)] = _shape(sizes, item, option)
    return shapes


def _shape(sizes: str, item: str, option: str) -> Shape:
    parts = [] if sizes in ("", "scalar") else sizes.split("x")
    for part in parts:
        if not _INTEGER.fullmatch(part) or abs(int(part)) > _LARGEST:
            raise UsageError(
                f"{option}: {part!r} in {item!r} is not a 32-bit integer.",
                f"Write sizes with x between them: {option}=input:1x3x224x224.",
            )
    return tuple(int(part) for part in parts)


def _split(item: str) -> tuple[str, str | None]:
    """Return the name in an item, and the text after its colon; None if trtexec cannot read it."""
    parts = item.split("'")
    if len(parts) == 3 and parts[2].startswith(":"):
        return parts[0] + parts[1], parts[2][1:]
    name, colon, rest = item.rpartition(":")
    return name, rest if len(parts) == 1 and colon and name else None


def format_shapes(shapes: Mapping[TensorName, Shape]) -> str:
    """Return shapes as trtexec 8.5 to 11 reads them; the inverse of `parse_shapes`.

    Raises:
        CaseError: the name of an input is `unsayable`.
    """
    # Before version 10, rank 0 is read only within quotes.
    return ",".join(
        f"{quoted(name, 'input', always=not shape)}:{'x'.join(map(str, shape))}"
        for name, shape in shapes.items()
    )


def shape_options(profile: Profile) -> list[str]:
    """Return one profile's `--minShapes` and the like, unquoted; none if the profile is empty.

    Raises:
        CaseError: the name of an input is `unsayable`.
    """
    ranges = {**profile.shapes, **profile.values}
    return [
        f"--{end}Shapes={format_shapes({name: getattr(r, end) for name, r in ranges.items()})}"
        for end in ("min", "opt", "max")
        if ranges
    ]


PRECISIONS = "--layerPrecisions"
OUTPUT_TYPES = "--layerOutputTypes"
_OPTION = re.compile(r"(?:^|\s)['\"]?--\w")


class Constraint(Struct, frozen=True):
    """One item of an option's value, such as `/norm*:fp32`.

    Attributes:
        option: `--layerPrecisions` or `--layerOutputTypes`.
        text: The item as written.
        name: Name of a layer, perhaps with `*`.
        types: The types as written, one for all outputs or one per output; None if trtexec cannot
            read the item.
    """

    option: str
    text: str
    name: str
    types: tuple[str, ...] | None


def split(words: Sequence[str]) -> list[str]:
    """Return the words of a command that is given as words, or as a text that is the only one."""
    return _words(words[0]) if len(words) == 1 else list(words)


def constraints_of(words: Sequence[str]) -> tuple[Constraint, ...]:
    """Return the items of both options in a command, in its order."""
    return tuple(
        Constraint(name, item, *_name_and_types(item, name))
        for name, _, value in (word.partition("=") for word in words)
        if name in (PRECISIONS, OUTPUT_TYPES)
        for item in value.split(",")
    )


def _words(text: str) -> list[str]:
    """Return the words of a text; a single option or specification is one, even with blanks."""
    if not _OPTION.search(text.strip(), 1) and (text[:2] == "--" or not _OPTION.search(text)):
        return [text.strip().replace('"', "")]
    try:
        # Shells continue lines with a backslash, PowerShell and cmd with ` and ^.
        return shlex.split(re.sub(r"(?:\\|\s[`^])\r?\n", " ", text), comments=True)
    except ValueError as error:
        raise UsageError(
            f"A shell could not parse the command: {error}.", "Paste it as it was typed."
        ) from error


def _name_and_types(item: str, option: str) -> tuple[str, tuple[str, ...] | None]:
    name, types = _split(item)
    if types is None:
        return name, None
    return name, tuple(types.split("+")) if option == OUTPUT_TYPES else (types,)
