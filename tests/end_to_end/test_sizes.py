"""Dynamic axes on the CPU: two sizes are judged, and what was not is said."""

import numpy as np
import onnx
import pytest

X = np.random.default_rng(0).uniform(1, 1.1, (12, 1, 4)).astype(np.float32)


def parsed(text):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


PLAIN = parsed("(float[n, 4] x) => (float[n, 4] y) <float[1] w = {3}> { [mul] y = Mul(x, w) }")
MIXING = parsed(
    """(float[n, 4] x) => (float[1, 4] y)
    <float[1] w = {130}, float[1] v = {1e-4}, int64[1] a = {0}>
    { [up] b = Mul(x, w) [sum] c = ReduceSum(b, a) [square] d = Mul(c, c) [down] y = Mul(d, v) }"""
)
"""Sums over the batch: the square of one sample's sum FP16 holds, that of two it does not."""
FROZEN = parsed(
    """(float[n, 4] x) => (float[1, 4] y) <float[1] w = {3}, int64[2] s = {1, 4}>
    { [mul] a = Mul(x, w) [flat] y = Reshape(a, s) }"""
)
HIGH = parsed(
    """(float[1, h, 4] x) => (float[1, h, 4] y)
    { [mean] m = ReduceMean <axes = [1]> (x) [add] y = Add(x, m) }"""
)


def told(ended):
    return " ".join(ended.out.split())


@pytest.fixture
def judged(call, tmp_path):
    """Run fix, or verify with a candidate."""

    def judged(proto, *options, x=X, candidate=None):
        onnx.save(proto, tmp_path / "m.onnx")
        np.savez(tmp_path / "x.npz", x=x)
        what = ["fix", "m.onnx"]
        if candidate is not None:
            onnx.save(candidate, tmp_path / "c.onnx")
            what = ["verify", "m.onnx", "c.onnx"]
        return call(*what, "--inputs", "x.npz", "-o", "run", *options)

    return judged


def test_a_batch_of_two_is_judged_too(judged):
    ended = judged(PLAIN)
    assert ended.code == 0, ended.err
    verdict = ended.record["verdict"]
    assert verdict["batch"]["passed"]
    assert (verdict["batch"]["shapes"], verdict["batch"]["whole"]) == ({"x": [2, 4]}, False)
    assert set(verdict["batch"]["samples"]) <= set(verdict["samples"])
    (axis,) = verdict["axes"]
    assert (axis["inputs"], axis["symbol"], axis["sizes"]) == ({"x": 0}, "n", [1, 2])
    assert "Axis 0 'n' of x is dynamic: judged at 1 and 2" in told(ended)


def test_what_overflows_in_a_batch_alone_fails(judged):
    ended = judged(MIXING)
    assert ended.code == 10
    batch = ended.record["verdict"]["batch"]
    assert (batch["whole"], batch["passed"], batch["rel_max"]) == (True, False, {"y": "Infinity"})
    assert "In batches of 2, output y has" in told(ended)
    assert "give inputs in such batches" in told(ended)


def test_inputs_that_are_such_batches_are_searched(judged):
    ended = judged(MIXING, "--no-repair", x=np.concatenate([X, X[::-1]], 1))
    assert ended.code == 0, ended.err
    assert ended.kept >= {"square"}
    assert ended.record["verdict"]["axes"][0]["sizes"] == [2, 4]


def test_a_candidate_that_mixes_the_samples_of_a_batch_fails(judged):
    mixing = parsed(
        """(float[n, 4] x) => (float[n, 4] y) <float[1] w = {3}, int64[1] a = {0}>
        { s = ReduceSum(x, a) r = Sub(s, x) t = Mul(x, w) y = Add(t, r) }"""
    )
    ended = judged(PLAIN, candidate=mixing)
    assert ended.code == 10
    assert ended.record["verdict"]["outputs"]["y"]["passed"]
    assert "In batches of 2, output y is out of tolerance" in told(ended)


def test_a_candidate_that_runs_on_single_samples_alone_fails(judged):
    one = onnx.ModelProto()
    one.CopyFrom(FROZEN)
    one.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    ended = judged(PLAIN, candidate=one)
    assert ended.code == 10
    assert "In batches of 2, it cannot be run" in told(ended)


def test_a_model_that_itself_fails_on_a_batch_is_told(judged):
    ended = judged(FROZEN)
    assert ended.code == 0, ended.err
    verdict = ended.record["verdict"]
    assert verdict["batch"] is None
    assert (verdict["axes"][0]["sizes"], verdict["axes"][0]["why"]) == ([1], "fails")
    assert "every sample has size 1: no other size was judged; no batches" in told(ended)
    assert "flat" in told(ended)


def test_a_metric_that_reads_single_samples_judges_no_mixed_batches(judged):
    ended = judged(MIXING, "--metric", "top1")
    assert ended.record["verdict"]["axes"][0]["why"] == "metric"
    assert "the metric reads one sample at a time" in told(ended)


def test_a_metric_judges_batches_of_independent_samples(judged):
    ended = judged(PLAIN, "--metric", "top1")
    assert ended.code == 0, ended.err
    assert ended.record["verdict"]["axes"][0]["sizes"] == [1, 2]


@pytest.mark.parametrize("heights", [(3, 5), (3, 3)])
def test_other_axes_are_judged_where_samples_differ(call, tmp_path, heights):
    onnx.save(HIGH, tmp_path / "m.onnx")
    (tmp_path / "load.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        f"    for i in range(12): yield {{'x': np.full((1, {heights}[i // 4 % 2], 4), i, 'f4')}}\n"
    )
    ended = call("fix", "m.onnx", "--inputs", "load.py:load", "-o", "run")
    assert ended.code == 0, ended.err
    said = told(ended)
    if heights == (3, 5):
        assert "Axis 1 'h' of x is dynamic: judged at 3 and 5." in said
    else:
        assert "Axis 1 'h' of x is dynamic, and every sample has size 3: no other size" in said


def test_a_static_model_says_nothing(judged):
    still = parsed("(float[1, 4] x) => (float[1, 4] y) <float[1] w = {3}> { y = Mul(x, w) }")
    ended = judged(still)
    assert ended.code == 0, ended.err
    assert ended.record["verdict"]["axes"] == []
    assert "dynamic" not in ended.out


def test_outputs_on_record_have_one_size(call, tmp_path):
    onnx.save(PLAIN, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    np.savez(tmp_path / "y.npz", y=3 * X)
    ended = call("verify", "m.onnx", "y.npz", "--inputs", "x.npz", "-o", "run")
    assert ended.code == 0, ended.err
    assert "recorded outputs have no other" in told(ended)
