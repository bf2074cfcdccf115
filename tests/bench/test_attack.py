"""The attacks that are quick, and the harness itself on planted failures."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from bench import attack
from bench.attacks import FAMILIES
from bench.attacks.attack import DOCUMENTED, Attack, Command, Outcome, faults
from tests.bench import planted_attacks

PLANTED = {
    "sound": "",
    "sound in a new interpreter": "",
    "refused": "",
    "traceback": "printed 'Traceback",
    "crash": "ended by signal 11",
    "hang": "over its limit of time",
    "memory": "over its limit of memory",
    "wrong code": "exit code 6, expected 3",
    "long message": "3000 bytes on standard error",
    "own noise": "",
    "silent": "no word on standard error",
    "lie": "passed, and is broken",
    "no JSON": "standard output is no JSON",
    "JSON": "",
    "no place": "does not say 'line 3'",
    "leftover file": "left temporary forgotten",
    "leftover process": "left process sleep",
}


def test_the_harness_sees_what_goes_wrong(tmp_path: Path) -> None:
    tried = attack.tried([planted_attacks.__name__], tmp_path, servers=1)
    found = {t.attack.name: t for t in tried}
    assert found.keys() == PLANTED.keys()
    for name, fault in PLANTED.items():
        seen = found[name].faults
        assert any(text.startswith(fault) for text in seen) if fault else not seen, (
            name,
            found[name],
        )
    assert found["hang"].outcome.seconds < 60
    assert found["memory"].outcome.memory < 1 << 30
    assert list(tmp_path.iterdir()) == []


def attempt(name: str, code: int, took: float = 1.0, **attributes: Any) -> attack.Tried:
    made = Attack(name, lambda _: Command([]), (10,), **attributes)
    outcome = Outcome(code, None, None, took, 10**8, "", "", 0, 0)
    return attack.Tried("lies", made, outcome, faults(made, outcome))


def test_figures_of_families_that_are_run_one_by_one(tmp_path: Path) -> None:
    lies = [
        attempt("a", 0, broken=True),
        attempt("b", 10, broken=True),
        attempt("c", 10, sound=True),
    ]
    attack.keep("lies", attack.tally(lies, 9.0), tmp_path)
    slow = [attempt("d", 10, 200.0, seconds=300.0), attempt("e", 10, 61.0)]
    attack.keep("files", attack.tally([attempt("f", 0)], 1.0), tmp_path)
    attack.keep("files", attack.tally(slow, 2.0), tmp_path)
    found = json.loads((tmp_path / "attack.json").read_text())
    measured = {each["what"]: (each["measured"], each["reached"]) for each in found["figures"]}
    assert list(found["details"]) == ["files", "lies"]
    assert measured["seconds of all attacks"] == (11.0, True)
    assert measured['false "passed" in 2 lies'] == (1, False)
    assert measured["share of 1 sound twins that do not pass"] == (1.0, False)
    assert measured["lies: attacks that failed"] == (1, False)
    assert measured["files: attacks"] == (2, True)
    assert measured["files: longest, seconds, of those up to 60"] == (61.0, False)
    assert measured["files: longest, seconds, of those up to 300"] == (200.0, True)
    assert measured["files: most memory, MB, of those up to 1074"] == (100.0, True)


def test_only_documented_exit_codes_can_be_asked_for() -> None:
    assert {0, 2, 3, 4, 5, 6, 7, 10, 129, 130, 143} == DOCUMENTED
    with pytest.raises(AssertionError, match="not documented"):
        Attack("x", lambda _: Command([]), (1,))


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_unlike(family: str) -> None:
    names = [each.name for each in importlib.import_module(attack.module_of(family)).ATTACKS]
    assert len({*names}) == len(names) > 0


def test_halfwise_withstands(tmp_path: Path) -> None:
    # All at once: to load halfwise takes a server as long as ten attacks.
    found = list(attack.tried([*map(attack.module_of, FAMILIES)], tmp_path, quick=True))
    failed = {(t.family, t.attack.name): (t.faults, t.outcome.err) for t in found if t.faults}
    assert failed == {}
    # No attack of that family is quick.
    assert {*FAMILIES} - {t.family for t in found} == {"untested"}
