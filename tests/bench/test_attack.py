"""The attacks that are quick, and the harness itself on planted failures."""

import importlib
from pathlib import Path

import pytest

from bench import attack
from bench.attacks import FAMILIES
from bench.attacks.attack import DOCUMENTED, Attack, Command
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


@pytest.mark.slow
def test_the_harness_sees_what_goes_wrong(tmp_path: Path) -> None:
    found = {t.attack.name: t for t in attack.tried([planted_attacks.__name__], tmp_path)}
    assert found.keys() == PLANTED.keys()
    for name, fault in PLANTED.items():
        faults = found[name].faults
        assert any(text.startswith(fault) for text in faults) if fault else not faults, (
            name,
            found[name],
        )
    assert found["hang"].outcome.seconds < 60
    assert found["memory"].outcome.memory < 1 << 30
    assert list(tmp_path.iterdir()) == []


def test_only_documented_exit_codes_can_be_asked_for() -> None:
    assert {0, 2, 3, 4, 5, 6, 7, 10, 129, 130, 143} == DOCUMENTED
    with pytest.raises(AssertionError, match="not documented"):
        Attack("x", lambda _: Command([]), (1,))


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_unlike(family: str) -> None:
    names = [each.name for each in importlib.import_module(attack.module_of(family)).ATTACKS]
    assert len({*names}) == len(names) > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_halfwise_withstands(family: str, tmp_path: Path) -> None:
    found = list(attack.tried([attack.module_of(family)], tmp_path, quick=True))
    failed = {t.attack.name: (t.faults, t.outcome.err) for t in found if t.faults}
    assert failed == {}
