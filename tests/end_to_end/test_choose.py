"""The trade-off on the first screen, and another plan taken from it."""

from collections import defaultdict

import onnx

from halfwise import choose
from halfwise.progress import Silent
from tests import models
from tests.tasks import classifier


def said(ended):
    return " ".join(ended.out.split())


def test_a_plan_that_serves_is_chosen_and_exported(fix, call):
    assert fix(classifier(), "--rel-max", "1e-5").code == 0
    ended = call(
        "choose", "run", "--worth", 1, "--metric", "auto", "-o", "run.chosen", folder="run.chosen"
    )
    assert ended.code == 0
    assert ended.kept == set()
    asked = [one["metric"] for one in ended.record["criterion"]["recognised"]]
    assert asked == ["top1", "confidence"]
    onnx.checker.check_model(onnx.load(ended.model))
    assert call("export", "run.chosen", "--as", "trtexec").code == 0


def test_a_run_that_keeps_nothing_has_its_own_plan_to_take(fix, call):
    ended = fix(models.small())
    assert (ended.code, ended.kept) == (0, set())
    ended = call("choose", "run", "--worth", 1, "-o", "run.chosen", folder="run.chosen")
    assert (ended.code, ended.kept) == (0, set())


def test_another_point_is_taken_by_its_cost(fix, call):
    fix(classifier(), "--rel-max", "1e-5")
    ended = call("choose", "run", "--worth", "1", "-o", "low", folder="low")
    assert (ended.code, ended.kept) == (10, set())


def test_choices_that_cannot_be_made_are_told(fix, call, refused):
    fix(classifier(), "--rel-max", "1e-5")
    assert "the nearest costs" in refused(3, "choose", "run", "--worth", "0.1")
    call("verify", "model.onnx", "run/model.onnx", "--inputs", "model.npz", "-o", "verified")
    assert "no plans to choose from" in refused(7, "choose", "verified", "--worth", "1")
    assert "no run folder" in refused(7, "choose", "nowhere", "--worth", "1")


def test_a_plan_that_only_the_headroom_refuses_passes_with_a_word(fix, call):
    assert fix(models.near_the_edge(), "--no-repair").kept
    ended = call("choose", "run", "--worth", "1", "-o", "low", folder="low")
    assert (ended.code, ended.kept) == (0, set())
    assert "At 2 × the ranges seen this plan gives NaN" in said(ended)
    assert "So few show only" in ended.out.splitlines()[0]


class Stages(Silent):
    """Notes what each stage works on."""

    def __init__(self) -> None:
        """Have noted nothing."""
        self.name, self.parts = "", defaultdict[str, set[str]](set)

    def stage(self, name: str, *_: object) -> None:
        """Begin a stage."""
        self.name = name

    def step(self, *_: object, of: str = "", **__: object) -> None:
        """Note the part."""
        self.parts[self.name].add(of)


def test_a_choice_makes_the_repairs_of_its_run_and_judges_one_plan(fix):
    made = fix(models.layer_norm())
    watcher = Stages()
    chosen = choose(made.folder, worth=9, watcher=watcher).run
    assert chosen.plan is not None
    assert [repair.to_dict() for repair in chosen.plan.repairs] == made.record["plan"]["repairs"]
    assert watcher.parts["repair"] <= {"ranges"}
