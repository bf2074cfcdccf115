from dataclasses import replace

import numpy as np
import pytest

from bench.preprocessing import (
    BESIDE,
    BEYOND,
    FAMILIES,
    PAIRS,
    RESIZERS,
    SINGLES,
    TRIPLES,
    Pipeline,
    Trial,
    beyond,
    trials,
)

PLAIN = Pipeline()


def test_trials_are_the_same_each_time_and_differ_by_seed():
    assert trials() == trials()
    assert trials(1)["pairs"] != trials(2)["pairs"]


def test_each_trial_differs_in_as_many_things_as_it_says():
    planned = trials()
    assert [len(planned[group]) for group in planned] == [len(SINGLES), PAIRS, TRIPLES]
    for count, group in enumerate(planned.values(), start=1):
        assert all(len(trial.truth) == count for trial in group)
    assert [t.truth for t in planned["single"]] == [{kind} for kind, _, _ in SINGLES]


def test_pipelines_that_fit_differently_differ_there_and_in_what_is_beside():
    made = beyond()
    assert len(made) == len(BEYOND) * len(BESIDE)
    framing = {"fit", "size", "side", "value", "offset"}
    assert all(any(getattr(t.a, f) != getattr(t.b, f) for f in framing) for t in made)


def test_kernels_of_other_families_are_told():
    assert Trial(PLAIN, replace(PLAIN, resize="opencv linear"), ()).truth == {"resampling"}
    assert RESIZERS.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        ({}, (1, 3, 224, 224)),
        ({"layout": "NHWC"}, (1, 224, 224, 3)),
        ({"layout": "CHW", "size": 64}, (3, 64, 64)),
        ({"fit": "shorter"}, (1, 3, 224, 224)),
        ({"fit": "letterbox", "side": "start"}, (1, 3, 224, 224)),
    ],
)
def test_pipelines(change, shape):
    photos = list(np.random.default_rng(1).integers(0, 256, (2, 300, 400, 3), np.uint8))
    pipeline = replace(PLAIN, **change)
    made = pipeline(photos)
    assert made[0].shape == shape
    other = pipeline(photos, other_order=True)
    assert np.allclose(made[1], other[1], atol=1e-5)
