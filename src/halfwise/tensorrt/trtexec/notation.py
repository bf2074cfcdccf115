"""trtexec's notation: precision constraints, and shapes such as `a:1x3x224x224,'b:0':1x8`.

This follows `samples/common/sampleOptions.cpp` of TensorRT 8.5 to 10.16: an option and its value
are one word with `=` between; values are split at commas, which quotes do not protect; the name is
the text before and within one pair of single quotes or, without quotes, before the last colon.
Rank 0 is `a:` or, as from TensorRT 10 on, `a:scalar`.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from halfwise.errors import CaseError, UsageError
from halfwise.records import TensorName
from halfwise.wording import shorten

PRECISIONS = "--layerPrecisions"
OUTPUT_TYPES = "--layerOutputTypes"
OPTIONS = (PRECISIONS, OUTPUT_TYPES)
CONSTRAINTS = "--precisionConstraints"
_PROGRAM = "trtexec"
_COMMENT = re.compile(r"^\s*#.*\n?|\s# .*$", re.MULTILINE)
_CONTINUED = re.compile(r"(?:\\|\s[`^])\r?\n")
"""A line continuation of sh, PowerShell or cmd."""
_SHELL = re.compile(r"^(?:\|\|?|&&?|;|\d?>.*|<.*)$")


_UNSAYABLE = {",": "splits there", "'": "takes it for a quotation mark"}
"""How trtexec treats characters in a name; no quotes or escapes prevent that."""
OTHER_KIND = "Use --as python instead: it compares whole names."


@dataclass(frozen=True)
class Key:
    """One item of an option's value.

    Attributes:
        option: `--layerPrecisions` or `--layerOutputTypes`.
        name: Name of a layer, perhaps with `*`.
        types: The types as written, one per output for output types.
        fault: Why trtexec cannot read the item; "" if it can.
        item: The item as written.
    """

    option: str
    name: str
    types: tuple[str, ...]
    item: str
    fault: str = ""


@dataclass(frozen=True)
class Given:
    """A command, options or a specification, as given.

    Attributes:
        words: The words of the command, as a shell passes them on.
        keys: All items of both options, in order.
        whole: Whether it is a command, not only options or a specification.
        repeated: Constraint options that occur more than once.
        split: Options that lack their `=` and value.
        stray: Words among the options that are not options, as after a comma and a blank.
    """

    words: tuple[str, ...]
    keys: tuple[Key, ...]
    whole: bool
    repeated: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()

    def value(self, option: str) -> str | None:
        """Return the value of an option; "" if it has none, None if it is not given."""
        for word in self.words:
            name, _, value = word.partition("=")
            if name == option:
                return value
        return None


def read(words: Sequence[str]) -> Given:
    """Parse a command, its options, or a bare specification.

    Args:
        words: The words from a shell, or the whole text as one word. A bare specification, such as
            `a:fp32,b:fp32`, is read as `--layerPrecisions`. In a script the first command with
            constraints counts.

    Raises:
        UsageError: quotes are unbalanced, or the text has nothing about precision.
    """
    split = _words(words)
    if len(split) == 1 and not split[0].startswith("-") and ":" in split[0]:
        split = [f"{PRECISIONS}={split[0]}"]
    names = [word.partition("=")[0] for word in split]
    given = [(name, word) for name, word in zip(names, split, strict=True) if name in OPTIONS]
    if not given:
        raise UsageError(
            f"It contains neither {PRECISIONS} nor {OUTPUT_TYPES}.",
            "Give a trtexec command, its options, or a specification such as layer:fp32,node:fp16.",
        )
    first = next(i for i, word in enumerate(split) if word.startswith("-"))
    whole = any(name.rpartition("/")[2] == _PROGRAM for name in names) or "--onnx" in names
    return Given(
        words=tuple(split),
        keys=tuple(k for name, word in given for k in _keys(name, word.partition("=")[2])),
        whole=whole,
        repeated=tuple(option for option in OPTIONS if names.count(option) > 1),
        split=tuple(name for name, word in given if "=" not in word),
        stray=tuple(word for word in split[first:] if not word.startswith("-")),
    )


def _words(words: Sequence[str]) -> list[str]:
    if len(words) != 1 or not _is_line(words[0]):
        return [word.strip() for word in words]
    try:
        found = shlex.split(_command(words[0]))
    except ValueError as error:
        raise UsageError(
            f"A shell could not parse the command: {error}.", "Paste it as it was typed."
        ) from error
    # The rest belongs to the shell, such as `2>&1 | tee build.log`.
    return list(takewhile(lambda word: not _SHELL.match(word), found))


def _command(text: str) -> str:
    """Return the first command of a script that has constraints, in one line.

    A pasted command may span lines without continuation marks: a line of options continues it.
    """
    commands: list[str] = []
    for line in _CONTINUED.sub(" ", _COMMENT.sub("", text)).splitlines():
        if commands and re.match(r"\s*['\"]?-", line):
            commands[-1] += f" {line}"
        else:
            commands.append(line)
    return next((c for c in commands if any(option in c for option in OPTIONS)), text)


def _is_line(text: str) -> bool:
    """Return whether a text is several shell words; layer names may contain blanks too."""
    options = len(re.findall(r"(?:^|\s)--\w", text))
    return options > 1 or bool(options and ('"' in text or not text.lstrip().startswith("--")))


def _keys(option: str, value: str) -> Iterable[Key]:
    for item in value.split(",") if value else ():
        parts = item.split("'")
        if len(parts) == 1:
            name, colon, types = item.rpartition(":")
        elif len(parts) == 3:
            # trtexec drops the character after the quotes, whatever it is.
            name, colon, types = parts[0] + parts[1], parts[2][:1], parts[2][1:]
        else:
            yield Key(option, "", (), item, "its single quotes do not form a pair")
            continue
        if not colon or not name:
            yield Key(option, name, (), item, "it is not a name, a colon and a type")
        else:
            separator = "+" if option == OUTPUT_TYPES else None
            yield Key(option, name, tuple(types.split(separator)) if types else ("",), item)


def written(entries: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Return names and types in a form that trtexec reads back, unless a name is `unsayable`."""
    return ",".join(
        f"{quoted(name, 'layer')}:{'+'.join(types)}"
        for name, types in entries
        if not unsayable(name)
    )


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
        name, sizes = _name_and_sizes(item, option)
        if name in shapes:
            raise UsageError(f"{option} names input {name!r} twice.", "Give one shape per input.")
        shapes[TensorName(name)] = _shape(sizes, item, option)
    return shapes


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


def _name_and_sizes(item: str, option: str) -> tuple[str, str]:
    parts = item.split("'")
    if len(parts) == 3 and parts[2].startswith(":"):
        name, sizes = parts[0] + parts[1], parts[2][1:]
    elif len(parts) == 1:
        name, _, sizes = item.rpartition(":")
    else:
        name, sizes = "", ""
    if not name:
        raise UsageError(
            f"{option}: {item!r} is not a name, a colon and sizes.",
            f"Write it like trtexec: {option}=input:1x3x224x224,'name:0':1x8.",
        )
    return name, sizes


def _shape(sizes: str, item: str, option: str) -> Shape:
    if sizes in ("", "scalar"):
        return ()
    parts = sizes.split("x")
    for part in parts:
        if not _INTEGER.fullmatch(part) or abs(int(part)) > _LARGEST:
            raise UsageError(
                f"{option}: {part!r} in {item!r} is not a 32-bit integer.",
                f"Write sizes with x between them: {option}=input:1x3x224x224.",
            )
    return tuple(int(part) for part in parts)
