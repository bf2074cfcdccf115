from tests.unit.render.runs import verdict, verification


def test_verify(call, answer):
    calls = answer("verify", verification(verdict=verdict(passed=False)))
    code, out, _ = call("verify", "m.onnx", "c.onnx", "--inputs", "x.npz", "--max-abs", "0.5")
    assert code == 10
    assert out.startswith("FAILED")
    (arguments, options) = calls[0]
    assert [str(a) for a in arguments] == ["m.onnx", "c.onnx", "x.npz"]
    assert (options["out"], options["max_abs"], options["runner"]) == (None, 0.5, None)


def test_a_runner_is_handed_on(call, answer):
    calls = answer("verify", verification())
    call("verify", "m.onnx", "o.json", "--inputs", "i.json", "--runner", "trt")
    assert calls[0][1]["runner"] == "trt"
