"""Files before the builder of TensorRT for RTX."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.errors import CaseError
from halfwise.targets.rtx import Build, Refusal
from halfwise.targets.runners import InRtx
from tests.unit.graph.sketch import Sketch


def test_both_forms_of_a_file_share_the_longest_time_of_a_build(monkeypatch):
    """A build that was given up is not waited for again, with shapes fixed."""
    clock, given = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)

    def build(*_, seconds):
        given.append(seconds)
        clock.now += 600
        return Build(parsed=False, engine=None, errors=(Refusal("no answer"),))

    s = Sketch(17)
    model = s.network(s.op("Relu", s.input("x", ["n", 4]))).model
    samples = Samples(("a",), lambda _: {"x": np.zeros((2, 4), np.float32)})
    builder: Any = SimpleNamespace(build=build)
    with pytest.raises(CaseError, match="no answer"):
        InRtx(builder, "SM86").run(model, samples)
    assert given == [600, 0]
