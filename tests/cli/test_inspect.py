import json

from halfwise.errors import RecordMismatch
from tests.unit.reporting.test_pieces import inspection


def test_inspect(call, answer):
    calls = answer("inspect", inspection())
    code, out, _ = call("inspect", "e.engine", "--model", "m.onnx", "--run-timeout", "3")
    assert code == 0
    assert out.startswith("FP16 80%")
    (arguments, options) = calls[0]
    assert [str(a) for a in arguments] == ["e.engine"]
    assert (str(options["model"]), options["inputs"], options["run_timeout"]) == ("m.onnx", None, 3)


def test_json(call, answer):
    answer("inspect", inspection())
    code, out, _ = call("inspect", "e.engine", "--json")
    assert code == 0
    assert json.loads(out)["layers"] == 7


def test_an_engine_that_cannot_be_read(call, answer):
    answer("inspect", RecordMismatch("It cannot be read.", "Build it again."))
    code, out, err = call("inspect", "e.engine")
    assert (code, out) == (7, "")
    assert err.endswith("error: It cannot be read.\nhint: Build it again.\n")
