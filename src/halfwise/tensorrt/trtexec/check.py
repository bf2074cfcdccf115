"""Check a trtexec command and its precision constraints for a version, and correct them."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

from halfwise.records import SEVERITIES, Finding
from halfwise.tensorrt.trtexec.keys import KeyReader, Meant
from halfwise.tensorrt.trtexec.layers import Kinds, Layer, complaint
from halfwise.tensorrt.trtexec.notation import (
    CONSTRAINTS,
    OPTIONS,
    OUTPUT_TYPES,
    PRECISIONS,
    Given,
    unsayable,
    written,
)
from halfwise.tensorrt.versions import FIRST_WITH, FIRST_WITHOUT_WEAK, Version, has, text_of

Entries = dict[str, tuple[str, ...]]


def check(
    given: Given,
    layers: Sequence[Layer],
    producers: Mapping[str, str],
    version: Version,
    kinds: Kinds = MappingProxyType({}),
) -> tuple[tuple[Finding, ...], str]:
    """Return the findings, errors first, and the corrected command.

    Args:
        given: The command or options.
        layers: Layers of the network.
        producers: Name of a tensor's producing node, by the tensor's name.
        version: Version of trtexec, (major, minor).
        kinds: The layers of each operator, for keys that name one.

    Returns:
        Findings, and the command for a shell (or the options, if only these were given); "" if
        nothing is left. Constraints on layers that do not exist or take none are left out;
        wildcards that this trtexec reads differently are expanded.
    """
    complaints = list(check_command(given, version))
    values = {}
    for option in OPTIONS:
        keys = [key for key in given.keys if key.option == option]
        reader = KeyReader(layers, producers, version, keys, kinds)
        meant: list[Meant] = []
        for key in keys:
            if fault := reader.fault(key):
                complaints.append(fault)
            elif (found := reader.read(key)) is None:
                complaints.append(reader.unmatched(key))
            else:
                meant.append(found)
        clashes = list(_clashes(meant, version))
        complaints += [_two_types(one, other, layer) for one, other, layer in clashes]
        # Of two equal keys trtexec keeps the later one.
        meant = list({item.key.name: item for item in meant}.values())
        complaints += [complaint for item in meant for complaint in reader.complaints(item)]
        # Of two wildcards the longer one is expanded: names take precedence over wildcards.
        spelt = {id(max(one, other, key=_length)) for one, other, _ in clashes}
        entries = _entries(meant, reader, spelt)
        values[option] = written(entries.items())
        if clashes and option == PRECISIONS and _all_fp32(meant, entries, layers):
            complaints.append(_no_fp16())
    complaints.sort(key=lambda c: SEVERITIES.index(c.severity))
    words = corrected_words(given, values, version)
    return tuple(complaints), shlex.join(words)


def _length(meant: Meant) -> int:
    return len(meant.key.name)


def _clashes(meant: Sequence[Meant], version: Version) -> Iterator[tuple[Meant, Meant, Layer]]:
    """Yield pairs of keys that give one layer different types without either taking precedence.

    Two equal keys, two names, or two wildcards if wildcards are patterns. A name takes precedence
    over a wildcard. Wildcards for output types all give one type (see `KeyReader`).
    """
    named = {layer.name for item in meant if not item.wild for layer in item.layers}
    for one, other in combinations(meant, 2):
        if one.wild != other.wild or one.key.types == other.key.types:
            continue
        same = one.key.name == other.key.name
        alike = (
            not has("* in names", version)
            or one.key.option == OUTPUT_TYPES
            or one.kind
            or other.kind
        )
        if one.wild and alike and not same:
            continue
        second = {layer.name for layer in other.layers} - (named if one.wild else set())
        if both := [layer for layer in one.layers if layer.name in second]:
            yield one, other, both[0]


def _two_types(one: Meant, other: Meant, layer: Layer) -> Finding:
    first, second = ("+".join(item.key.types) for item in (one, other))
    if one.wild and one.key.name != other.key.name:
        how, below = "a hash table decides which one counts", "the longer pattern counts"
    else:
        how, below = "the later one counts", "the later one counts"
    return complaint(
        "two-types",
        "error",
        f"{layer.name} gets {first} by {one.key.item} and {second} by {other.key.item} in "
        f"{one.key.option}: {how}",
        f"Leave one of them out; below, {below}.",
        layer.place,
    )


def _all_fp32(meant: Sequence[Meant], entries: Entries, layers: Sequence[Layer]) -> bool:
    """Return whether the corrected items give FP32 to every layer that takes a precision."""
    reached = {n.name for item in meant if item.key.name in entries for n in item.layers}
    able = [layer for layer in layers if layer.computes_floats and not layer.own_type]
    named = all(layer.name in reached or layer.name in entries for layer in able)
    return bool(able) and named and set(entries.values()) == {("fp32",)}


def _no_fp16() -> Finding:
    return complaint(
        "all-fp32",
        "warning",
        f"corrected like this, {PRECISIONS} asks for FP32 in all layers: the same as no --fp16",
        "For all FP32, drop --fp16. For FP16, drop the item that asks for FP32 in all layers, or "
        "name the layers to keep in FP32.",
    )


def _entries(meant: Sequence[Meant], reader: KeyReader, spelt: set[int]) -> Entries:
    """Return types by the names and wildcards that express the meaning, in order."""
    names = {
        id(item): (item.key.name,)
        if id(item) not in spelt and reader.says(item)
        else tuple(n.name for n in item.layers if reader.takes(item, n) and not unsayable(n.name))
        for item in meant
    }
    found: Entries = {}
    # Specific keys override general ones.
    for item in sorted(meant, key=lambda m: (not m.wild, _length(m) if m.wild else 0)):
        found |= dict.fromkeys(names[id(item)], item.key.types)
    order = [name for item in meant for name in names[id(item)]]
    return {name: found[name] for name in order}


_STRONG = "--stronglyTyped"
_LOW = ("--fp16", "--bf16", "--int8", "--fp8", "--int4", "--best")
_REMOVED = (*OPTIONS, CONSTRAINTS, *_LOW)
_MIGRATION = "https://docs.nvidia.com/deeplearning/tensorrt/latest/api/migration-guide.html"
_EFFECTIVE = ("obey", "prefer")


def check_command(given: Given, version: Version) -> Iterator[Finding]:
    """Yield findings on the command other than its constraints."""
    if version >= FIRST_WITHOUT_WEAK:
        yield _removed(given, version)
        return
    for option in given.repeated:
        yield complaint(
            "repeated-option",
            "error",
            f"{option} is given more than once: trtexec takes one, and fails on the other with "
            "Unknown option",
            "Give it once, with commas between its items.",
        )
    for option in given.split:
        yield complaint(
            "unreadable",
            "error",
            f"{option} has no value: trtexec expects it in the same word",
            f"Write {option}=name:type.",
        )
    for word in given.stray:
        yield complaint(
            "unreadable",
            "error",
            f"trtexec reads {word!r} as a separate option, and fails",
            "Put no space after a comma.",
        )
    if given.value(_STRONG) is not None:
        yield from _strong(version)
    if given.whole:
        yield from _effect(given)


def _removed(given: Given, version: Version) -> Finding:
    names = [word.partition("=")[0] for word in given.words]
    gone = ", ".join(dict.fromkeys(name for name in names if name in _REMOVED))
    return complaint(
        "removed",
        "error",
        f"trtexec {text_of(version)} has no {gone} and fails on unknown options: from "
        f"{text_of(FIRST_WITHOUT_WEAK)} on, every network is strongly typed",
        "Write the types into the model (halfwise fix does so), and build it without these "
        "options.",
        source=_MIGRATION,
    )


def _strong(version: Version) -> Iterator[Finding]:
    if not has("strong typing", version):
        since = text_of(FIRST_WITH["strong typing"])
        message = f"trtexec {text_of(version)} has no {_STRONG}; it came with {since}"
    else:
        message = (
            f"{_STRONG} and constraints cannot be combined: layers of a strongly typed "
            "network take no precision, and the FP16 flag makes the build fail"
        )
    yield complaint("strong-typing", "error", message, f"Leave {_STRONG} out, or the constraints.")


def _effect(given: Given) -> Iterator[Finding]:
    mode = given.value(CONSTRAINTS)
    if mode is None or mode == "none":
        yield complaint(
            "no-effect",
            "error",
            f"with{'out' if mode is None else ''} {CONSTRAINTS}{'=none' if mode else ''} trtexec "
            "sets no constraint at all",
            f"Add {CONSTRAINTS}=obey.",
        )
    elif mode not in _EFFECTIVE:
        yield complaint(
            "unreadable",
            "error",
            f"{CONSTRAINTS} is {mode!r}; trtexec knows obey, prefer and none",
            f"Write {CONSTRAINTS}=obey.",
        )
    low = [flag for flag in _LOW if given.value(flag) is not None]
    types = {t for key in given.keys for t in key.types}
    if not low and types <= {"fp32"}:
        yield complaint(
            "nothing-lowered",
            "warning",
            "no option allows the builder any type but FP32, so there is nothing to constrain",
            "Add --fp16, or leave the constraints out.",
        )
    for name in ("fp16", "bf16", "int8"):
        if name in types and f"--{name}" not in low and "--best" not in low:
            yield complaint(
                "flag-missing",
                "error",
                f"a constraint asks for {name}, which the builder may not use without --{name}",
                f"Add --{name}.",
            )


def corrected_words(given: Given, values: Mapping[str, str], version: Version) -> list[str]:
    """Return the words of the corrected command.

    Args:
        given: The original command or options.
        values: The corrected values of both options; "" for one without any left.
        version: Version of trtexec.
    """
    strong_only = version >= FIRST_WITHOUT_WEAK
    dropped = _REMOVED if strong_only else (*OPTIONS, _STRONG, CONSTRAINTS)
    kept = [word for word in given.words if word not in given.stray]
    words = [word for word in kept if word.partition("=")[0] not in dropped]
    left = {option: value for option, value in values.items() if value}
    if strong_only:
        return words if given.whole else []
    if given.whole and left:
        flags = {word.partition("=")[0] for word in words}
        types = {t for key in given.keys for t in key.types}
        missing = [t for t in ("fp16", "bf16", "int8") if t in types and "--best" not in flags]
        words += [f"--{t}" for t in missing if f"--{t}" not in flags]
        mode = given.value(CONSTRAINTS)
        words.append(f"{CONSTRAINTS}={mode if mode in _EFFECTIVE else 'obey'}")
    return [*words, *(f"{option}={value}" for option, value in left.items())]
