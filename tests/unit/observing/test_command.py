import numpy as np
import pytest

from halfwise import api
from tests import models
from tests.unit.fixing.test_command import Listener


def test_what_tensors_look_like():
    ill = models.tiny_weights()
    listener = Listener()
    seen = api.observe(ill.proto, dict(ill.inputs), watcher=listener)
    assert listener.stages == ["load", "observe"]
    assert len(seen.samples) == models.COUNT
    found = {str(o.tensor): o.absmax for o in seen.tensors}
    assert found["x"] == np.abs(ill.inputs["x"]).max()
    assert found["tanh_out"] == pytest.approx(np.tanh(2), rel=1e-6)
