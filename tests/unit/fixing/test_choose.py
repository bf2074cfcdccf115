"""Another plan of a run, without a new search."""

from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import onnx
import pytest

from halfwise import choose, fix
from halfwise.case import hash_sample
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.fixing.again import pick
from halfwise.records import replace
from halfwise.store import read_run, write_run
from tests import models
from tests.tasks import classifier, overflowing_classifier
from tests.unit.fixing.test_space import TWO
from tests.unit.records.curves import curve, point

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which next to all is kept, although keeping nothing serves."""
    folder, ill = tmp_path_factory.mktemp("made"), classifier()
    onnx.save(ill.proto, folder / "m.onnx")
    np.savez(folder / "x.npz", x=ill.inputs["x"])
    picked = fix(folder / "m.onnx", folder / "x.npz", out=folder / "run", rel_max=1e-5)
    assert picked.run.plan is not None
    assert len(picked.run.plan.keep) > 1
    return folder / "run"


@pytest.fixture
def moved(made, tmp_path) -> Path:
    copytree(made.parent, tmp_path / "there")
    return Path(tmp_path / "there" / "run")


def recorded(folder: Path) -> Any:
    return read_run(folder)


def chosen(folder: Path, **options: Any) -> Any:
    return choose(folder, **options).run


def changed(folder: Path, **update) -> Path:
    run = read_run(folder)
    write_run(folder, replace(run, **update))
    return folder


def of(run: Any, **update):
    return replace(run.provenance, **update)


def kept(run: Any) -> int:
    return len(run.plan.keep)


def test_a_plan_is_judged_as_its_run_unless_another_metric_is_named(made):
    assert chosen(made, worth=1).criterion == recorded(made).criterion
    assert not chosen(made, worth=1).verdict.passed


def test_a_plan_is_judged_by_its_task_and_written(made, tmp_path):
    picked = choose(made, out=tmp_path / "chosen", worth=1, metric="auto")
    before = recorded(made)
    assert picked.run.verdict.passed
    assert picked.run.verdict.unseen
    assert picked.run.verdict.samples == before.verdict.samples
    metrics = [one.metric for one in picked.run.criterion.recognised]
    assert (metrics, kept(picked.run)) == (["top1", "confidence"], 0)
    assert (tmp_path / "chosen" / "model.onnx").is_file()
    assert read_run(tmp_path / "chosen") == picked.run
    assert picked.run.curve is not None
    place = picked.run.curve.plan
    assert place in picked.run.curve.shown
    assert picked.run.curve.points[place].count == 0
    assert picked.run.curve.points == before.curve.points


def test_another_plan_can_be_chosen_of_what_was_chosen(made, tmp_path):
    choose(made, out=tmp_path / "chosen", worth=1)
    again = chosen(tmp_path / "chosen", worth=1)
    assert kept(again) == 0
    # Errors of the curve are still over what was allowed at first.
    assert again.curve.criterion.rel_max == 1e-5
    assert again.search.remarks[0].names == {"rule": "choose --worth 1"}


def test_held_out_samples_that_joined_the_search_do_not_judge(moved):
    run = recorded(moved)
    changed(moved, search=with_joined(run))
    joined, again = run.verdict.samples[:1], moved.parent / "again"
    for folder, out in ((moved, again), (again, None)):
        picked = chosen(folder, out=out, worth=1)
        assert picked.verdict.samples == run.verdict.samples[1:]
        assert joined[0] in picked.search.calibration
        assert picked.search.joined == joined


def with_joined(run: Any) -> Any:
    """Return the record of a search whose first held-out sample has joined it."""
    joined = run.verdict.samples[:1]
    calibration = (*run.search.calibration, *joined)
    update = {"joined": joined, "calibration": calibration}
    return replace(run.search, **update, seen=marks_of(calibration))


def marks_of(names) -> tuple[str, ...]:
    x = classifier().inputs["x"]
    return tuple(hash_sample({"x": x[place(name)]})[:16] for name in names)


def place(name: str) -> int:
    return int(name[name.index("[") + 1 : -1])


def test_a_run_tells_what_its_search_has_seen(made):
    search = recorded(made).search
    assert search.seen == marks_of(search.calibration)
    assert set(chosen(made, worth=1).search.seen) == set(search.seen)


def test_samples_of_the_search_are_not_held_out_under_other_names_or_in_another_split(moved):
    run, x = recorded(moved), classifier().inputs["x"]
    joined, *remaining = map(place, run.verdict.samples)
    changed(moved, search=with_joined(run))
    np.savez(moved.parent / "other.npz", x=x)
    picked = chosen(moved, inputs=moved.parent / "other.npz", worth=1)
    assert [place(name) for name in picked.verdict.samples] == remaining
    # Among others, or alone: what has been seen does not judge.
    new = classifier(20).inputs["x"][12:]
    picked = chosen(moved, inputs={"x": new}, heldout={"x": np.concatenate([x, new[:0]])}, worth=1)
    assert [place(name) for name in picked.verdict.samples] == remaining
    order = [place(name) for name in run.search.calibration]
    picked = chosen(
        moved, inputs={"x": x[order[:1]]}, heldout={"x": x[[joined, *order[1:]]]}, worth=1
    )
    assert not picked.verdict.unseen


def test_the_types_of_the_run_hold(made, tmp_path):
    folder = made.parent
    options: Any = {"to": "bf16", "io": "bf16", "rel_max": 1e-5}
    fix(folder / "m.onnx", folder / "x.npz", out=tmp_path / "ruled", **options)
    run = chosen(tmp_path / "ruled", worth=1)
    assert (run.plan.low, run.io) == ("bf16", "bf16")


@pytest.mark.parametrize("rule", [{}, {"lower": ["square"]}])
def test_infinities_inside_are_judged_as_in_the_run(tmp_path, rule):
    ill = overflowing_classifier()
    onnx.save(ill.proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=ill.inputs["x"])
    before = fix(tmp_path / "m.onnx", tmp_path / "x.npz", out=tmp_path / "run", **rule).run
    assert before.verdict.passed
    assert before.curve is not None
    assert before.worth is not None
    run = chosen(tmp_path / "run", worth=before.worth.cost)
    assert run.verdict.passed
    assert kept(run) == kept(before)


def test_a_run_without_a_curve_is_refused(moved):
    with pytest.raises(RecordMismatch, match="`halfwise verify` makes none"):
        choose(changed(moved, curve=None, kind="verify"), worth=1)


def test_model_and_inputs_have_to_be_those_of_the_run(moved):
    run, there = read_run(moved), moved.parent
    changed(moved, provenance=of(run, model=str(there / "m.onnx"), data=str(there / "x.npz")))
    assert chosen(moved, worth=1, metric="auto").verdict.passed
    np.savez(there / "x.npz", x=classifier(20).inputs["x"])
    with pytest.raises(RecordMismatch, match="no longer has the inputs of the run"):
        choose(moved, worth=1)
    other = chosen(moved, inputs=there / "x.npz", worth=1, metric="auto")
    assert other.verdict.passed
    onnx.save(classifier(4, seed=9).proto, there / "m.onnx")
    with pytest.raises(RecordMismatch, match="not the model that the run was made from"):
        choose(moved, worth=1)
    (there / "m.onnx").unlink()
    with pytest.raises(RecordMismatch, match="is missing"):
        choose(moved, worth=1)


def test_relative_paths_are_those_of_the_run_s_working_directory(moved, tmp_path, monkeypatch):
    there, elsewhere = moved.parent, tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    at = {"model": "m.onnx", "folder": str(there)}
    changed(moved, provenance=of(read_run(moved), **at, data="x.npz"))
    assert chosen(moved, worth=1).provenance.data == str(there / "x.npz")
    with pytest.raises(CaseError, match=f"no file or folder {there / 'y.npz'}"):
        choose(changed(moved, provenance=of(read_run(moved), data="y.npz")), worth=1)


def test_inputs_that_were_in_memory_are_given_again(moved):
    run = recorded(moved)
    changed(moved, provenance=of(run, data=None))
    with pytest.raises(RecordMismatch, match="does not record where its inputs are"):
        choose(moved, worth=1)
    again = chosen(moved, inputs=dict(classifier().inputs), worth=1, metric="auto")
    assert again.verdict.passed


def test_code_that_only_a_run_folder_names_is_not_run(moved):
    run = recorded(moved)
    for name, update in (
        ("--inputs", {"data": "theirs.py:samples"}),
        ("--preprocess", {"options": {"preprocess": "theirs.py:read"}}),
        ("--ort-library", {"options": {"ort_library": "theirs.so"}}),
        ("--heldout", {"options": {"heldout": "theirs.py:samples"}}),
    ):
        folder = changed(moved, provenance=of(run, **update))
        with pytest.raises(UsageError, match=f"made with {name} theirs") as refused:
            choose(folder, worth=1)
        assert "give it yourself" in (refused.value.hint or "")
    options = {"metric": "theirs.py:score", "metric_drop": "1.0"}
    changed(moved, provenance=of(run, options=options))
    with pytest.raises(UsageError, match="made with --metric theirs"):
        choose(moved, worth=1)


def test_wishes_outside_their_domain_are_refused(made):
    with pytest.raises(UsageError, match="--worth is -1"):
        choose(made, worth=-1)
    with pytest.raises(UsageError, match="which plan to take"):
        choose(made)
    with pytest.raises(CaseError, match="costs at most"):
        choose(made, worth=0.5)


@pytest.mark.parametrize(
    ("ill", "allow"), [(models.busy_product, "tf32"), (models.huge_weights, "bf16")]
)
def test_what_is_chosen_has_the_types_that_its_cost_is_of(ill, allow, tmp_path):
    onnx.save(ill().proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **ill().inputs)
    options: Any = {f"allow_{allow}": True, "no_repair": True, "allow_random": True}
    fix(tmp_path / "m.onnx", tmp_path / "x.npz", out=tmp_path / "run", **options)
    before = recorded(tmp_path / "run")
    dear = before.worth.cost
    run = chosen(tmp_path / "run", worth=dear, out=tmp_path / "again", allow_random=True)
    assert allow in {k.precision for k in run.plan.keep}
    assert [k.precision for k in run.plan.keep] == [k.precision for k in before.plan.keep]
    assert run.worth.cost == dear
    assert run.curve.points[run.curve.plan].error == before.curve.points[before.curve.plan].error
    again = chosen(tmp_path / "again", worth=dear, allow_random=True)
    assert [k.precision for k in again.plan.keep] == [k.precision for k in run.plan.keep]


def test_a_point_that_is_not_the_run_s_plan_has_its_own_types_too(tmp_path):
    onnx.save(TWO.proto, tmp_path / "m.onnx")
    inputs: Any = TWO.inputs
    np.savez(tmp_path / "x.npz", **inputs)
    options: Any = {"allow_bf16": True, "no_repair": True, "allow_random": True, "rel_max": 0.05}
    fix(tmp_path / "m.onnx", tmp_path / "x.npz", out=tmp_path / "run", **options)
    curve = recorded(tmp_path / "run").curve
    point = curve.points[curve.plan]
    assert frozenset() < curve.named(point.bf16) <= curve.named(point.kept)
    other = changed(tmp_path / "run", curve=replace(curve, plan=None))
    run = chosen(other, worth=point.cost, allow_random=True)
    assert {k.node for k in run.plan.keep if k.precision == "bf16"} == curve.named(point.bf16)
    assert run.worth.cost == point.cost


LOW = point("", 1.0, 9.0)
ONE = point("0", 1.2, 3.0)
FULL = point("0-2", 2.0, 0.0)
MADE = curve(LOW, ONE, FULL)


@pytest.mark.parametrize(
    ("most", "picked"),
    [(1.0, LOW), (1.2, ONE), (1.5, ONE), (9, FULL)],
)
def test_the_point_that_answers(most, picked):
    assert pick(MADE, most) == picked


def test_a_cost_is_compared_as_it_is_shown():
    made = curve(LOW, shown := point("0", 1.3004, 0.5), point("0-1", 1.306, 0.1))
    assert pick(made, 1.3) == shown
    assert pick(made, 1.299) == LOW


def test_of_equal_errors_the_cheaper_is_taken():
    one, two = (point("0", cost, 1.0) for cost in (1.1, 1.05))
    assert pick(curve(one, two), 1.1) == two


@pytest.mark.parametrize(
    ("made", "most", "words"),
    [
        (MADE, 0.5, "costs at most 0.5 ×; the nearest costs 1 ×"),
        (curve(point("0", None, 1.0)), 2, "could predict no costs"),
    ],
)
def test_where_none_answers_the_nearest_is_told(made, most, words):
    with pytest.raises(CaseError, match=words):
        pick(made, most)


def test_plans_with_int8_are_not_chosen(moved):
    made = replace(recorded(moved).curve, rung="int8")
    with pytest.raises(RecordMismatch, match="have INT8"):
        choose(changed(moved, curve=made), worth=1)
