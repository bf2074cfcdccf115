"""Check precision constraints as trtexec of a version would read them, and correct them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

from halfwise.records import SEVERITIES, Finding
from halfwise.tensorrt.trtexec.command import check_command, corrected_words
from halfwise.tensorrt.trtexec.complaint import Complaint, Version
from halfwise.tensorrt.trtexec.keys import KeyReader, Meant
from halfwise.tensorrt.trtexec.kinds import Kinds
from halfwise.tensorrt.trtexec.layers import Layer
from halfwise.tensorrt.trtexec.notation import (
    OPTIONS,
    OUTPUT_TYPES,
    PRECISIONS,
    Given,
    command_line,
    unsayable,
    written,
)
from halfwise.tensorrt.versions import FIRST_WILD

Entries = dict[str, tuple[str, ...]]


def check(
    given: Given,
    layers: Sequence[Layer],
    producers: Mapping[str, str],
    version: Version,
    kinds: Kinds = MappingProxyType({}),
) -> tuple[tuple[Finding, ...], str]:
    """Return what is wrong, errors first, and the whole as it should be.

    Args:
        given: What trtexec is given.
        layers: Layers of the network.
        producers: Name of the node that makes a tensor, by the tensor's name.
        version: Version of trtexec, (major, minor).
        kinds: The layers of each operator, for keys that name one.

    Returns:
        Findings, and the command for a shell (or the options, where only these were given); ""
        where nothing is left. Constraints on what is not there or takes none are left out;
        wildcards that this trtexec reads otherwise are written out.
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
        # Of two equal keys trtexec has the later one alone.
        meant = list({item.key.name: item for item in meant}.values())
        complaints += [complaint for item in meant for complaint in reader.complaints(item)]
        # Of two wildcards the longer one is written out: names count before wildcards.
        spelt = {id(max(one, other, key=_length)) for one, other, _ in clashes}
        entries = _entries(meant, reader, spelt)
        values[option] = written(entries.items())
        if clashes and option == PRECISIONS and _all_fp32(meant, entries, layers):
            complaints.append(_no_fp16())
    complaints.sort(key=lambda c: SEVERITIES.index(c.severity))
    words = corrected_words(given, values, version)
    return tuple(c.finding() for c in complaints), command_line(words)


def _length(meant: Meant) -> int:
    return len(meant.key.name)


def _clashes(meant: Sequence[Meant], version: Version) -> Iterator[tuple[Meant, Meant, Layer]]:
    """Yield pairs of keys that give one layer different types, neither of which goes before.

    Two equal keys, two names, or two wildcards where wildcards are patterns. A name goes before a
    wildcard. Different wildcards for output types all give one type (see `KeyReader`).
    """
    named = {layer.name for item in meant if not item.wild for layer in item.layers}
    for one, other in combinations(meant, 2):
        if one.wild != other.wild or one.key.types == other.key.types:
            continue
        same = one.key.name == other.key.name
        alike = version < FIRST_WILD or one.key.option == OUTPUT_TYPES or one.kind or other.kind
        if one.wild and alike and not same:
            continue
        second = {layer.name for layer in other.layers} - (named if one.wild else set())
        if both := [layer for layer in one.layers if layer.name in second]:
            yield one, other, both[0]


def _two_types(one: Meant, other: Meant, layer: Layer) -> Complaint:
    first, second = ("+".join(item.key.types) for item in (one, other))
    if one.wild and one.key.name != other.key.name:
        how, below = "which one counts, a hash table decides", "the longer pattern counts"
    else:
        how, below = "the later one counts", "the later one counts"
    return Complaint(
        "two-types",
        "error",
        f"{layer.name} gets {first} by {one.key.item} and {second} by {other.key.item} in "
        f"{one.key.option}: {how}",
        f"Leave one of them out; below, {below}.",
        layer.place,
    )


def _all_fp32(meant: Sequence[Meant], entries: Entries, layers: Sequence[Layer]) -> bool:
    """Return whether every layer that takes a precision gets FP32 by the corrected items."""
    reached = {n.name for item in meant if item.key.name in entries for n in item.layers}
    able = [layer for layer in layers if layer.computes_floats and not layer.own_type]
    named = all(layer.name in reached or layer.name in entries for layer in able)
    return bool(able) and named and set(entries.values()) == {("fp32",)}


def _no_fp16() -> Complaint:
    return Complaint(
        "all-fp32",
        "warning",
        f"corrected like this, {PRECISIONS} asks for FP32 in all layers: the same as no --fp16",
        "Say which is meant: without --fp16 all is FP32; for FP16, leave the item that says FP32 "
        "for all layers out, or name the layers that are to be FP32.",
    )


def _entries(meant: Sequence[Meant], reader: KeyReader, spelt: set[int]) -> Entries:
    """Return types by the names and wildcards that say what is meant, in order."""
    names = {
        id(item): (item.key.name,)
        if id(item) not in spelt and reader.says(item)
        else tuple(n.name for n in item.layers if reader.takes(item, n) and not unsayable(n.name))
        for item in meant
    }
    found: Entries = {}
    # What is more particular overrides what is more general.
    for item in sorted(meant, key=lambda m: (not m.wild, _length(m) if m.wild else 0)):
        found |= dict.fromkeys(names[id(item)], item.key.types)
    order = [name for item in meant for name in names[id(item)]]
    return {name: found[name] for name in order}
