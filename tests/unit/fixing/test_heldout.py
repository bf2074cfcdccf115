import pytest

from halfwise.fixing.fixed import Fixed
from halfwise.fixing.heldout import HeldOut
from halfwise.judging.judge import Judged, judge_outputs
from halfwise.progress import Silent
from halfwise.records import Criterion
from tests import models
from tests.models import Ill
from tests.unit.fixing.test_loop import found

pytestmark = pytest.mark.usefixtures("unrepaired")


def left_of(fixed: Fixed) -> HeldOut:
    return fixed.heldout.for_watcher(Silent())


def failing(heldout: HeldOut, *indices: int) -> Judged:
    """Judge outputs that are wrong on some samples."""
    results = [
        {name: array + (10.0 if i in indices else 0.0) for name, array in reference.items()}
        for i, reference in enumerate(heldout.references)
    ]
    return judge_outputs(results, heldout.samples, heldout.references, Criterion(), None)


def test_failing_samples_join_the_calibration_and_the_rest_judges():
    fixed = found(models.layer_norm())
    heldout = left_of(fixed)
    first, second = fixed.heldout.samples.ids
    before = fixed.planner.trials.samples.ids
    assert heldout.join(failing(heldout, 1))
    assert (heldout.joined, heldout.filed) == ([second], [])
    assert heldout.samples.ids == (first,)
    assert len(heldout.references) == 1
    assert fixed.planner.trials.samples.ids == (*before, second)
    assert fixed.planner.evidence.observations.samples == (*before, second)
    assert not heldout.join(failing(heldout, 0))


def test_what_passed_does_not_join():
    heldout = left_of(found(models.layer_norm()))
    assert not heldout.join(failing(heldout))
    assert heldout.joined == []


def test_without_any_the_calibration_is_judged():
    ill = models.layer_norm()
    fixed = found(Ill(ill.proto, {"x": ill.inputs["x"][:1]}))
    heldout = left_of(fixed)
    assert not heldout.unseen
    assert heldout.samples.ids == fixed.planner.trials.samples.ids
    assert not heldout.join(failing(heldout, 0))
