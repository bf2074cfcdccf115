"""Words on plans that a builder refused, and what was tried instead."""

from collections.abc import Iterator, Mapping, Sequence

from halfwise.records import BuildConfig, BuildOutcome, Move, MoveKind, Refusal, RefusalKind
from halfwise.wording import count, sentence, shorten, verb

_MOVES: Mapping[MoveKind, str] = {
    "computing": "nothing that moves data is constrained there",
    "border": "constrained only at the border there",
    "region": "all of the region kept",
    "level": "optimization level {level}",
    "tf32": "TF32 allowed",
    "written-out": "its GRUs and LSTMs written out",
    "one-node": "each of its norms as one node",
    "half": "half of the region kept",
    "island": "{island} kept",
    "certain": "only what guards are certain of is kept there",
    "none": "nothing kept there",
}
_REFUSALS: Mapping[RefusalKind, str] = {
    "no-kernel": "has no kernel for",
    "compiler": "fails in its own compiler for",
    "crash": "crashed in",
    "timeout": "took too long for",
    "unknown": "gave up",
}


def move_line(move: Move) -> str:
    """Return what was tried instead of a refused plan, in a few words."""
    text = _MOVES[move.kind].format(level=move.level, island=move.island)
    if move.border and move.kind != "border":
        text += ", constrained at its border only"
    return f"instead of build {move.refused}: {text}"


def told_words(config: BuildConfig, *, full: bool) -> str:
    """Return the build settings that affect the choice of kernels, to follow a clause.

    `full` is whether nothing is low in it: then its name says whether TF32 is on.
    """
    text = ""
    if config.optimization_level is not None:
        text += f", optimization level {config.optimization_level}"
    if config.tf32 and not full:
        text += ", TF32 allowed"
    if config.rewritten:
        text += f", {count(len(config.rewritten), 'node')} in another form"
    return text


def refusal_lines(refusals: Sequence[Refusal], builds: Sequence[BuildOutcome]) -> Iterator[str]:
    """Yield sentences on what was refused, where, and what was not built because of it.

    Builds that were refused alike share a sentence.

    Args:
        refusals: In the order of the run.
        builds: Builds of the run, which have the signal that ended one.
    """
    signals = {b.number: b.signal for b in builds}
    alike: dict[tuple[object, ...], list[Refusal]] = {}
    for r in refusals:
        key = (r.kind, r.ends, r.nodes, r.shown, r.said, signals.get(r.build))
        alike.setdefault(key, []).append(r)
    for group in alike.values():
        yield _refusal(group, signals.get(group[0].build))


def _refusal(group: Sequence[Refusal], signal: str | None) -> str:
    refusal, where = group[0], "the model"
    if refusal.ends:
        first, last = shorten(refusal.ends[0], 40), shorten(refusal.ends[-1], 40)
        how = "" if refusal.shown else " in the order of the file"
        where = f"{count(len(refusal.nodes), 'node')} from {first} to {last}{how}"
    builds = verb(len(group), "Build", "Builds")
    text = f"{builds} {', '.join(str(r.build) for r in group)}: the builder "
    text += _REFUSALS[refusal.kind]
    text += f" {where}" if refusal.kind != "unknown" or refusal.ends else ""
    text += f", by {signal}" if signal else ""
    if avoided := sum(r.avoided for r in group):
        text += f"; {count(avoided, 'plan')} with the same region not built"
    said = f" It said: {shorten(refusal.said, 160)}" if refusal.said else ""
    return sentence(f"{text}.{said}")
