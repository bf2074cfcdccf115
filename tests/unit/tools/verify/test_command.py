import pytest

from halfwise import api
from halfwise.errors import CaseError
from tests import models


@pytest.fixture
def ill():
    return models.tiny_weights()


def test_verify_judges_every_sample(ill, tmp_path):
    fixed = api.fix(ill.proto, dict(ill.inputs))
    assert fixed.model is not None
    result = api.verify(ill.proto, fixed.model, dict(ill.inputs), out=tmp_path / "run")
    assert result.model is None
    assert result.run.kind == "verify"
    assert len(result.run.verdict.samples) == models.COUNT
    assert result.run.verdict.unseen
    assert result.run.verdict.passed
    assert api.report(tmp_path / "run") == result.run
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["run.json"]


def test_verify_demands_the_same_inputs_and_outputs(ill):
    with pytest.raises(CaseError, match="inputs"):
        api.verify(ill.proto, models.mask().proto, dict(ill.inputs))
    with pytest.raises(CaseError, match="outputs"):
        api.verify(ill.proto, models.small().proto, dict(ill.inputs))
