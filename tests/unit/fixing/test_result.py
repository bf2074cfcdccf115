import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.errors import CaseError
from halfwise.fixing.result import Result
from halfwise.graph import weights
from tests import models
from tests.unit.reporting.runs import run


def test_the_model_is_made_when_asked_for():
    ill = models.layer_norm()
    result = api.fix(ill.proto, dict(ill.inputs))
    assert result.folder is None
    assert result.model is not None
    onnx.checker.check_model(result.model)
    assert {node.name for node in result.model.graph.node} >= {"square", "root"}


def test_without_a_mixed_model_there_is_none():
    assert Result(run(), None).model is None


def test_more_weights_than_a_protobuf_holds(monkeypatch):
    ill = models.layer_norm()
    result = api.fix(ill.proto, {k: np.asarray(v) for k, v in ill.inputs.items()})
    assert result.mixed is not None
    monkeypatch.setattr(
        "halfwise.fixing.result.PROTOBUF_BYTES", weights.weight_bytes(result.mixed) - 1
    )
    with pytest.raises(CaseError, match="more than a protobuf holds") as told:
        _ = result.model
    assert "out=…" in told.value.hint
