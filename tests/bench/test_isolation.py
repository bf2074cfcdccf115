"""The isolation bench, with few failures."""

from pathlib import Path

from bench.isolation import EXPECTED, Isolation, Trial, trials


def test_each_kind_comes_as_often_as_the_others() -> None:
    drawn = trials(len(EXPECTED) * 2 * 3)
    assert {drawn.count(trial) for trial in drawn} == {3}
    assert drawn == trials(len(drawn))
    assert drawn != sorted(drawn, key=lambda trial: (trial.at, trial.do))


def test_failures_are_recorded_and_leave_nothing(tmp_path: Path) -> None:
    planned = [Trial("build", "segv"), Trial("run", "disconnect"), Trial("run", "kill")]
    seen = Isolation(tmp_path, planned).run()
    assert seen.wrong == []
    assert (seen.recorded, seen.left) == (3, 0)
