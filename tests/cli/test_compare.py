import json

from tests.unit.reporting.comparisons import comparison

COMMAND = ("compare", "m.onnx", "--inputs", "x.npz", "--b", "engine")


def test_compare(call, answer):
    calls = answer("compare", comparison())
    code, out, _ = call(*COMMAND, "--a", "emulation", "--max-builds", "4", "--seed", "0")
    assert code == 10
    assert out.startswith("First divergence: b")
    options = calls[0][1]
    assert (options["a"], options["b"]) == ("emulation", "engine")
    assert (options["max_builds"], options["seed"]) == (4, 0)
    assert "target" not in options


def test_no_difference_ends_with_0(call, answer):
    answer("compare", comparison(nodes=(), first=(), path=(), outputs={}))
    assert call(*COMMAND)[0] == 0


def test_json(call, answer):
    answer("compare", comparison())
    code, out, _ = call(*COMMAND, "--json")
    assert code == 10
    assert json.loads(out) == json.loads(comparison().model_dump_json())


def test_the_other_side_is_needed(call):
    assert call("compare", "m.onnx", "--inputs", "x.npz")[0] == 2
