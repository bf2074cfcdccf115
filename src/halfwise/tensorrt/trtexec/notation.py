"""trtexec's notation: precision constraints, and shapes such as `a:1x3x224x224,'b:0':1x8`.

Read as `samples/common/sampleOptions.cpp` of TensorRT 8.5 to 10.16 reads them: an option and its
value are one word with `=` between; values are split at commas, which quotes do not protect; what
stands before and within one pair of single quotes is the name, and without quotes what stands
before the last colon. Rank 0 is `a:`, or `a:scalar` as from TensorRT 10 on.
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
"""The end of a line of sh, PowerShell or cmd that goes on in the next."""
_SHELL = re.compile(r"^(?:\|\|?|&&?|;|\d?>.*|<.*)$")


_UNSAYABLE = {",": "splits there", "'": "takes it for a quotation mark"}
"""What trtexec makes of characters in a name, which no quotes and no escapes keep from it."""
OTHER_KIND = "Use --as python instead: it compares whole names."


@dataclass(frozen=True)
class Key:
    """One item of an option's value.

    Attributes:
        option: `--layerPrecisions` or `--layerOutputTypes`.
        name: Name of a layer, perhaps with `*`.
        types: The types as written, one per output for output types.
        fault: Why trtexec cannot read the item; "" where it can.
        item: The item as written.
    """

    option: str
    name: str
    types: tuple[str, ...]
    item: str
    fault: str = ""


@dataclass(frozen=True)
class Given:
    """What was given.

    Attributes:
        words: The words of the command, as a shell hands them over.
        keys: All items of both options, in order.
        whole: Whether it is a command, rather than options or a specification alone.
        repeated: Options of constraints that come more than once.
        split: Options that lack their `=` and value.
        stray: Words among the options that are none, as after a blank behind a comma.
    """

    words: tuple[str, ...]
    keys: tuple[Key, ...]
    whole: bool
    repeated: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()

    def value(self, option: str) -> str | None:
        """Return the value of an option; "" for one without, None where it is not given."""
        for word in self.words:
            name, _, value = word.partition("=")
            if name == option:
                return value
        return None


def read(words: Sequence[str]) -> Given:
    """Return what a command, options of it, or a bare specification say.

    Args:
        words: The words that a shell made, or the whole text in one. A bare specification, such as
            `a:fp32,b:fp32`, is one of `--layerPrecisions`. Of a script the first command with
            constraints counts.

    Raises:
        UsageError: quotes that do not pair, or nothing about precision in it.
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
    # What follows is the shell's, such as `2>&1 | tee build.log`.
    return list(takewhile(lambda word: not _SHELL.match(word), found))


def _command(text: str) -> str:
    """Return the first command of a script that has constraints, in one line.

    A pasted command may go over several lines without saying so: options continue what is before.
    """
    commands: list[str] = []
    for line in _CONTINUED.sub(" ", _COMMENT.sub("", text)).splitlines():
        if commands and re.match(r"\s*['\"]?-", line):
            commands[-1] += f" {line}"
        else:
            commands.append(line)
    return next((c for c in commands if any(option in c for option in OPTIONS)), text)


def _is_line(text: str) -> bool:
    """Return whether a text is several words of a shell; names of layers may hold blanks too."""
    options = len(re.findall(r"(?:^|\s)--\w", text))
    return options > 1 or bool(options and ('"' in text or not text.lstrip().startswith("--")))


def _keys(option: str, value: str) -> Iterable[Key]:
    for item in value.split(",") if value else ():
        parts = item.split("'")
        if len(parts) == 1:
            name, colon, types = item.rpartition(":")
        elif len(parts) == 3:
            # trtexec drops one character behind the quotes, whatever it is.
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
    """Return names and types as trtexec reads them back, but for what is `unsayable`."""
    return ",".join(
        f"{quoted(name, 'layer')}:{'+'.join(types)}"
        for name, types in entries
        if not unsayable(name)
    )


def unsayable(name: str) -> str:
    """Return the character in a name that trtexec cannot be told; "" where there is none."""
    return next((character for character in _UNSAYABLE if character in name), "")


def quoted(name: str, what: str, *, always: bool = False) -> str:
    """Return a name as trtexec reads it back, in quotes where it holds a colon, or `always`.

    Raises:
        CaseError: it is `unsayable`; `what` says what has the name.
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
"""Sizes are 32-bit in TensorRT before 10, and no larger number is a size of anything that fits."""


def parse_shapes(text: str, option: str) -> dict[TensorName, Shape]:
    """Return the shapes that `text` gives, by input name, in its order.

    Negative numbers are taken: they have a meaning among the values of a shape tensor.

    Args:
        text: The value of the option.
        option: Its name, for errors.

    Raises:
        UsageError: no colon, no name, quotes that do not pair, a size that is no 32-bit integer, or
            a name that comes twice.
    """
    shapes: dict[TensorName, Shape] = {}
    for item in text.split(","):
        name, sizes = _name_and_sizes(item, option)
        if name in shapes:
            raise UsageError(f"{option} names input {name!r} twice.", "Give one shape per input.")
        shapes[TensorName(name)] = _shape(sizes, item, option)
    return shapes


def format_shapes(shapes: Mapping[TensorName, Shape]) -> str:
    """Return shapes as trtexec 8.5 to 11 reads them; `parse_shapes` undoes it.

    Raises:
        CaseError: the name of an input is `unsayable`.
    """
    # Before version 10, rank 0 can be read within quotes only.
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
