"""Twenty faults that are planted in the source, one at a time, and must be found by `make test`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CLASSES = "tests/end_to_end/test_failure_classes.py"
_GUARDS = ("tests/unit/fixing/attribute", _CLASSES)
_SEARCH = ("tests/unit/fixing/plan", "tests/unit/fixing/test_space.py", "tests/golden", _CLASSES)
_CASTS = ("tests/unit/graph", "tests/golden", "tests/end_to_end/test_fix.py", _CLASSES)
_JUDGE = ("tests/unit/metrics", "tests/unit/judging", "tests/unit/fixing/test_loop.py", _CLASSES)
_INTAKE = ("tests/unit/inputs", "tests/unit/graph", "tests/end_to_end/test_fp16_exports.py")


@dataclass(frozen=True)
class Mutation:
    """One edit of the source.

    Attributes:
        name: What is wrong then.
        old: Text that stands once in all of the package, in whichever file.
        new: What takes its place.
        tests: Files and folders of the tests that are run, up to the first that fails.
    """

    name: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "headroom counts the wrong way",
        "reach = limit / evidence.headroom",
        "reach = limit * evidence.headroom",
        _GUARDS,
    ),
    Mutation(
        "an eps that becomes subnormal is taken for zero",
        "vanishes = bool(tiny) and tiny[0][1] <= fmt.flush_threshold",
        "vanishes = bool(tiny) and tiny[0][1] <= fmt.smallest_normal",
        _GUARDS,
    ),
    Mutation(
        "what leads to both operands of a difference is blamed, not to one",
        "return direct | (first ^ second)",
        "return direct | (first & second)",
        _GUARDS,
    ),
    Mutation(
        "one block of a long sum too many is counted",
        "additions = ceil((_terms(node) or 1) / BLOCK) - 1",
        "additions = ceil((_terms(node) or 1) / BLOCK)",
        _GUARDS,
    ),
    Mutation(
        "a node that was needed is not tried again when another has gone",
        "if n in kept and needed.get(n) != kept]",
        "if n in kept and n not in needed]",
        _SEARCH,
    ),
    Mutation(
        "what bisection found is not taken",
        "passing, best = middle, plans[middle]",
        "passing = middle",
        _SEARCH,
    ),
    Mutation(
        "plans are ranked by their size before their cost",
        "return min(price, inf if most is None else most), len(kept)",
        "return len(kept), min(price, inf if most is None else most)",
        _SEARCH,
    ),
    Mutation(
        "a group of two nodes that failed is never split",
        "elif len(some) > 1:\n                size",
        "elif len(some) > 2:\n                size",
        _SEARCH,
    ),
    Mutation(
        "a weight that a kept node reads too is rounded for both",
        "len(wanted) == 1 and ir.DataType.FLOAT not in wanted:\n            (low,) = wanted",
        "len(lows := {*wanted} - {ir.DataType.FLOAT}) == 1:\n            (low,) = lows",
        _CASTS,
    ),
    Mutation(
        "a lone constant that vanishes is not told",
        "return int(fmt.vanishes(array))",
        "return 0",
        _CASTS,
    ),
    Mutation(
        "kept products get no anchor",
        "        anchor(self.graphs, self.names)\n",
        "",
        _CASTS,
    ),
    Mutation(
        "an output has the type of the node that gives it, whatever was asked",
        "end = self.low if name in self.low_io else ir.DataType.FLOAT\n            wanted",
        "end = value.dtype or self.low\n            wanted",
        _CASTS,
    ),
    Mutation(
        "a NaN for a number is no fault",
        "equal = (left == right) | (np.isnan(left) & np.isnan(right))",
        "equal = (left == right) | np.isnan(right)",
        _JUDGE,
    ),
    Mutation(
        "the best sample counts for slices, not the worst",
        "tuple(map(max, mine, other.by_group))",
        "tuple(map(min, mine, other.by_group))",
        _JUDGE,
    ),
    Mutation(
        "a metric may drop by twice what is allowed",
        "after >= before - criterion.metric_drop",
        "after >= before - 2 * criterion.metric_drop",
        _JUDGE,
    ),
    Mutation(
        "a sample that joined the search goes on to judge",
        "rest = [i for i in range(len(self.rest)) if i not in chosen]",
        "rest = [*range(len(self.rest))]",
        _JUDGE,
    ),
    Mutation(
        "a copy of a calibration sample is taken for unseen",
        "seen, chosen = set(searched), []",
        "seen, chosen = set[str](), []",
        _INTAKE,
    ),
    Mutation(
        "arrays go to inputs by order, not by name",
        "return {name: arrays[name] for name in expected}",
        "return dict(zip(expected, arrays.values(), strict=True))",
        _INTAKE,
    ),
    Mutation(
        "declared sizes are believed",
        "    forget_shapes(graphs_in(proto.graph))\n    try:\n",
        "    try:\n",
        _INTAKE,
    ),
    Mutation(
        "the author's islands of an FP16 export are lost",
        "islands = computing & fp32 if computing - fp32 else frozenset[NodeName]()",
        "islands = frozenset[NodeName]()",
        _INTAKE,
    ),
)


def places(mutation: Mutation, package: Path) -> Iterator[Path]:
    """Yield the files below a folder that hold a mutation's old text, as often as they do."""
    for file in sorted(package.rglob("*.py")):
        for _ in range(file.read_text(encoding="utf-8").count(mutation.old)):
            yield file


def plant(mutation: Mutation, package: Path) -> None:
    """Make the edit in the files of a folder.

    Raises:
        ValueError: The old text stands nowhere, or more than once.
    """
    files = [*places(mutation, package)]
    if len(files) != 1:
        raise ValueError(f"{mutation.name}: the old text stands {len(files)} times")
    text = files[0].read_text(encoding="utf-8")
    files[0].write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
