import numpy as np
import pytest

from halfwise.case import Case, Samples, Settings
from halfwise.errors import CaseError, RunFailed
from halfwise.judging.frozen_named import frozen_named
from halfwise.records import Criterion
from tests.frozen import LENGTH, WIDTH, frozen_batch, network


def case(batch):
    x = np.ones((batch, LENGTH, WIDTH), np.float32)
    samples = Samples(("s0",), lambda _: {"x": x})
    whole = network(frozen_batch(2))
    return Case(whole, samples, samples.select(()), Criterion(), None, (), "")


def test_a_failure_is_told_by_its_size():
    told = pytest.raises(CaseError, match="runs on batches of 2: split, join hold")
    with told, frozen_named(case(1), Settings()):
        raise RunFailed("the model failed")


def test_a_failure_of_something_else_stays():
    with pytest.raises(RunFailed, match="an engine failed"), frozen_named(case(2), Settings()):
        raise RunFailed("an engine failed")


def test_what_took_too_long_is_not_run_again():
    with pytest.raises(RunFailed, match="too long"), frozen_named(case(1), Settings()):
        raise RunFailed("too long", late=True)
