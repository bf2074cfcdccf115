"""Modernizing the tiny model of every failure class changes none of them in function."""

import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.formats import ROUNDINGS_OF_MODEL
from halfwise.graph.conversion import upcast
from halfwise.graph.loading import load_network
from halfwise.metrics import relative_error
from tests import models


@pytest.mark.parametrize("make", models.CLASSES, ids=lambda make: make.__name__)
def test_no_failure_class_is_changed(make, tmp_path):
    ill = make()
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    onnx.save(ill.proto, old)
    if upcast(load_network(old))[1].formats:
        with pytest.raises(CaseError, match="stores"):
            api.modernize(old, new, dict(ill.inputs))
        assert not new.exists()
        return
    record = api.modernize(old, new, dict(ill.inputs), trt_version="11")
    assert record.error <= ROUNDINGS_OF_MODEL
    before, after = (Session(load_network(path).model) for path in (old, new))
    sample = {name: np.asarray(array) for name, array in ill.sample(1).items()}
    one, two = before.run(sample), after.run(sample)
    assert (
        max(relative_error(array, two[name]) for name, array in one.items()) <= ROUNDINGS_OF_MODEL
    )
