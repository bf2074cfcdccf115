"""What repairs are to a user: less to keep, told, and left out where that is asked for."""

import onnx
import pytest

from halfwise.fixing.repair import making
from tests.end_to_end.conftest import fixing
from tests.unit.fixing.repair.sluices import Sluice, renamed, replaced, sluiced


@pytest.fixture(autouse=True)
def _own_rule(monkeypatch):
    monkeypatch.setattr(making, "RULES", (Sluice(),))


def test_a_repaired_model_keeps_nothing_and_is_judged_against_the_original(call, saved):
    saved(sluiced())
    ended = call(*fixing("model.onnx"))
    assert (ended.code, ended.kept) == (0, set())
    record = ended.record
    (repair,) = record["plan"]["repairs"]
    assert repair["proof"]["equal"]
    assert (repair["before"], record["baseline"]["passed"]) == ("Infinity", False)
    assert record["curve"]["points"][0]["cost"] == 1
    nodes = [n.name for n in onnx.load(ended.model).graph.node if n.op_type != "Cast"]
    assert nodes == ["up_0", "wide_0", "down_0"]
    judging = ["verify", "model.onnx", "run/model.onnx", "--inputs", "model.npz"]
    assert call(*judging).code == 0
    again = call(*fixing("run/model.onnx")[:-1], "again", folder="again")
    assert (again.code, again.record["plan"]["repairs"]) == (0, [])
    tampered = onnx.load(ended.model)
    tampered.metadata_props[0].value = tampered.metadata_props[0].value.replace("-10", "-9")
    onnx.save(tampered, "run/model.onnx")
    assert call(*judging).code == 10


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Sluice(), ["--no-repair"]),
        (Sluice(), ["--no-repair", "--budget", "time=900"]),
        (Sluice(spoil=renamed), ["--lower", "down_0"]),
        (Sluice(spoil=replaced), ["--lower", "down_0"]),
        (Sluice(spoil=replaced), ["--keep-op", "Mul"]),
    ],
)
def test_what_is_left_out_or_would_remove_a_named_node_is_not_made(
    call, saved, monkeypatch, rule, options
):
    monkeypatch.setattr(making, "RULES", (rule,))
    saved(sluiced())
    ended = call(*fixing("model.onnx"), *options)
    assert ended.record["plan"]["repairs"] == []
    assert "wide_0" in ended.kept or ended.code == 10
