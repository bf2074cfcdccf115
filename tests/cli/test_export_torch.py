import json

from tests.unit.tools.test_export_torch import record


def test_options_are_handed_on(call, answer):
    calls = answer("export_torch", record())
    code, out, _ = call(
        *("export-torch", "net.py:make", "-o", "m.onnx", "--inputs", "x.npz", "--no-fold"),
        *("--dynamic", "x:0=n", "--dynamic", "x:1", "--sizes", "n=1,4"),
        *("--exporter", "torchscript", "--opset", "17", "--tolerance", "0.1"),
    )
    assert code == 0
    assert "computes the same" in out
    ((arguments, options),) = calls
    assert [str(a) for a in arguments] == ["net.py:make", "m.onnx", "x.npz"]
    assert options.pop("watcher") is not None
    assert options == {
        "dynamic": ["x:0=n", "x:1"],
        "sizes": ["n=1,4"],
        "exporter": "torchscript",
        "opset": 17,
        "fold": False,
        "tolerance": 0.1,
    }


def test_a_difference_exits_with_10(call, answer):
    answer("export_torch", record(passed=False))
    code, out, _ = call("export-torch", "net.py:make", "-o", "m.onnx", "--json")
    assert code == 10
    assert json.loads(out)["passed"] is False
