"""The golden runs that each run of the tests compares, and that a comparison finds what got worse.

Those of the failure classes without repairs are compared in `end_to_end/test_failure_classes.py`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from halfwise.fixing import attribute
from halfwise.fixing.plan.search import Search, SearchResult
from halfwise.records import NodeName, replace
from tests.golden import running
from tests.golden.__main__ import main
from tests.golden.comparing import differences
from tests.golden.entries import ENTRIES
from tests.golden.running import FOLDER, golden, golden_facts, run, store

QUICK = ("classes/layer_norm", "cases/cast_int", "cases/frozen", "int8/outlier", "tasks/classifier")


@pytest.mark.parametrize("name", QUICK)
def test_decides_as_before(name):
    before = golden_facts(name)
    assert before is not None
    assert differences(name, before, run(ENTRIES[name])) == []


def test_every_entry_is_frozen_and_nothing_else_is():
    groups = {file.stem for file in FOLDER.glob("*.json")}
    assert [name for group in groups for name in golden(group) if name not in ENTRIES] == []
    assert [name for name in ENTRIES if golden_facts(name) is None] == []


# --- plants: what a worse search, or a worse guard, does to a run --------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def found_otherwise(change: Callable[[Search, SearchResult], SearchResult]) -> Plant:
    """Return a plant that changes what each search finds."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        run_search = Search.run
        patch.setattr(Search, "run", lambda self, *a, **k: change(self, run_search(self, *a, **k)))

    return plant


def one_more(which: Callable[..., frozenset[NodeName]]) -> Plant:
    """Return a plant that keeps another node, for which the plan's rank is `min` or `max`."""

    def more(searched: Search, found: SearchResult) -> SearchResult:
        others = [found.kept | {node} for node in searched.nodes if node not in found.kept]
        return replace(found, kept=which(others, key=searched.rank))

    return found_otherwise(more)


def no_ranges(patch: pytest.MonkeyPatch) -> None:
    """Raise no guard about values that leave the range."""
    patch.setattr(attribute, "range_guards", lambda _: iter(()))


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """Search as if no guard suspected anything, and then look again."""
    run_search = Search.run

    def again(self: Search, *given: Any, **named: Any) -> SearchResult:
        suspects, seeds = self.suspects, self.seeds
        self.suspects, self.seeds = [], [self.forced]
        run_search(self, *given, **named)
        self.suspects, self.seeds = suspects, seeds
        return run_search(self, *given, **named)

    patch.setattr(Search, "run", again)


PLANTS: dict[str, tuple[Plant, str, str]] = {
    "a further kept node": (one_more(min), "cases/convs/no-repair", "without a cause"),
    "a dearer plan": (one_more(max), "cases/convs/no-repair", "cost"),
    "everything kept": (
        found_otherwise(lambda searched, found: replace(found, kept=frozenset(searched.nodes))),
        *("classes/layer_norm/no-repair", "without a cause"),
    ),
    "a lost cause": (no_ranges, "classes/layer_norm/no-repair", "without a cause"),
    "more evaluations": (forgetful, "classes/layer_norm/no-repair", "evaluations"),
    "a plan emptied": (
        found_otherwise(lambda _, found: replace(found, kept=frozenset())),
        *("classes/layer_norm/no-repair", "causes"),
    ),
}
"""What is planted, the entry that is run, and a fact that must differ."""


@pytest.mark.parametrize(("plant", "name", "fact"), PLANTS.values(), ids=PLANTS)
def test_a_planted_change_fails_the_comparison(monkeypatch, capsys, plant, name, fact):
    plant(monkeypatch)
    assert main(["compare", name, "--jobs", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"{name}: {fact}: ") for line in lines), lines


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"kept": {"a": "square", "b": "overflow"}}, "cause of a"),
        ({"kept": {"a": "square", "c": "overflow"}}, "cause of a"),
        ({"sums": "fp32"}, "sums"),
        ({"sums": None}, "sums"),
        ({"sums": "fp32", "kept": {"a": "overflow", "c": "square"}}, "sums"),
    ],
)
def test_causes_of_nodes_and_the_format_of_sums_are_compared(changed, fact):
    before = {"passed": True, "sums": "fp16", "kept": {"a": "overflow", "b": "square"}}
    assert differences("name", before, before) == []
    assert fact in {d.fact for d in differences("name", before, before | changed)}


def test_another_plan_may_do_with_lower_sums():
    before = {"passed": True, "sums": "fp32", "kept": {"a": "overflow", "b": "square"}}
    now = before | {"sums": "fp16", "kept": {"a": "overflow", "c": "square"}}
    assert differences("name", before, now) == []


def test_a_run_that_was_cut_short_is_not_frozen(monkeypatch, tmp_path, capsys):
    name, held = "cases/convs/no-repair", golden("cases")
    monkeypatch.setattr(running, "FOLDER", tmp_path)
    entry = replace(ENTRIES[name], options=(*ENTRIES[name].options, "--budget", "time=0"))
    monkeypatch.setitem(ENTRIES, name, entry)
    store("cases", held)
    assert main(["renew", name, "--jobs", "1"]) == 1
    assert golden("cases") == held
    assert "seconds" in capsys.readouterr().out
