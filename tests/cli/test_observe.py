import json

from tests.unit.reporting.runs import observations


def test_observe(call, answer):
    answer("observe", observations())
    command = ("observe", "m.onnx", "--inputs", "x.npz")
    assert call(*command)[1].startswith("3 of 5 tensors reach 10000")
    assert call(*command, "--limit", "1e6")[1].startswith("3 of 5 tensors reach 1e+06")
    code, out, _ = call(*command, "--json")
    assert code == 0
    assert json.loads(out) == observations().model_dump(mode="json")
