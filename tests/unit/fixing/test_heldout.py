"""The samples that no search has seen, and how plans do on them."""

import pytest

from halfwise.fixing.depths import HeldOut
from halfwise.fixing.space import Space
from halfwise.judging.judge import Judged, judge_outputs
from halfwise.progress import Silent
from halfwise.records import Criterion
from tests import models
from tests.models import Ill
from tests.unit.fixing.running import found, space_of

pytestmark = pytest.mark.usefixtures("unrepaired")


def two(ill: Ill) -> tuple[Space, HeldOut]:
    """Plans of a model, and its two held-out samples."""
    space = space_of(ill)
    left, seen = space.variant.case.heldout, space.bench
    everything = space.plan(space.choices)
    references = [seen.judge.run(sample, everything) for sample in left]
    return space, HeldOut(space.variant.case, left, references, seen.references, Silent())


def failing(heldout: HeldOut, *indices: int) -> Judged:
    """Judge outputs that are wrong on some samples."""
    results = [
        {name: array + (10.0 if i in indices else 0.0) for name, array in reference.items()}
        for i, reference in enumerate(heldout.references)
    ]
    return judge_outputs(results, heldout.samples, heldout.references, Criterion(), None)


def test_failing_samples_join_the_calibration_and_the_rest_judges():
    space, heldout = two(models.layer_norm())
    first, second = heldout.samples.ids
    before = space.bench.samples.ids
    moved, references = heldout.join(failing(heldout, 1), space)
    assert (moved.ids, len(references)) == ((second,), 1)
    assert heldout.joined == (second,)
    assert heldout.samples.ids == (first,)
    assert len(heldout.references) == 1
    assert space.bench.samples.ids == space.evidence.observations.samples == (*before, second)
    # The last one stays, whatever it shows.
    assert not heldout.may_join(failing(heldout, 0))
    assert not heldout.join(failing(heldout, 0), space)[0]
    assert heldout.samples.ids == (first,)


def test_at_most_a_quarter_joins_at_a_time():
    space, heldout = two(models.layer_norm())
    samples = sum([heldout.rest] * 5, heldout.rest.select(()))
    heldout.rest, heldout.rest_references = samples, [*heldout.rest_references] * 5
    assert len(heldout.join(failing(heldout, *range(10)), space)[0]) == 2


def test_what_passed_does_not_join():
    space, heldout = two(models.layer_norm())
    assert not heldout.join(failing(heldout), space)[0]
    assert (heldout.joined, len(heldout.rest)) == ((), 2)


def test_without_any_the_calibration_is_judged():
    ill = models.layer_norm()
    fixed = found(Ill(ill.proto, {"x": ill.inputs["x"][:1]}))
    heldout = fixed.heldout
    assert not heldout.unseen
    assert heldout.samples.ids == fixed.space.bench.samples.ids
    assert not heldout.may_join(failing(heldout, 0))
