"""Dynamic axes: two sizes are judged, and a model that kept the batch of its export is named."""

import numpy as np
import onnx
import pytest

from tests import frozen

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
    assert (verdict["batch"]["size"], verdict["batch"]["whole"]) == (2, False)
    assert set(verdict["batch"]["samples"]) <= set(verdict["samples"])
    (axis,) = verdict["axes"]
    assert (axis["inputs"], axis["symbol"], axis["sizes"]) == ({"x": 0}, "n", [1, 2])


def test_an_interrupted_run_leaves_batches_out_and_says_so(judged, pressed):
    pressed(1)
    ended = judged(PLAIN)
    assert ended.code == 0, ended.err
    verdict = ended.record["verdict"]
    assert verdict["batch"] is None
    assert (verdict["axes"][0]["sizes"], verdict["axes"][0]["why"]) == ([1], "interrupted")
    assert "batches were left out, as the run was interrupted" in " ".join(ended.out.split())


def test_what_overflows_in_a_batch_alone_fails(judged):
    ended = judged(MIXING)
    assert ended.code == 10
    batch = ended.record["verdict"]["batch"]
    assert (batch["whole"], batch["passed"]) == (True, False)
    assert [failure["kind"] for failure in batch["failures"]] == ["non-finite"]


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
    assert not ended.record["verdict"]["batch"]["passed"]


def test_a_condition_on_all_samples_of_a_batch_fails_no_candidate(judged):
    """It is the same for the first samples: their batch does not show that samples are mixed."""
    condition = parsed(
        """(float[n, 4] x) => (float[n, 4] y) <float w = {1.5}, float v = {3}, float u = {5}> {
            m = ReduceMean <keepdims = 0> (x) c = Greater(m, w) f = Where(c, v, u) y = Mul(x, f)
        }"""
    )
    x = X.copy()
    x[3] += 1
    ended = judged(condition, candidate=condition, x=x)
    assert ended.code == 0, ended.out
    assert ended.record["verdict"]["batch"]["passed"]


def test_a_candidate_that_runs_on_single_samples_alone_fails(judged):
    one = onnx.ModelProto()
    one.CopyFrom(FROZEN)
    one.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    ended = judged(PLAIN, candidate=one)
    assert ended.code == 10
    assert [f["kind"] for f in ended.record["verdict"]["failures"]] == ["batch"]


def test_a_model_that_itself_fails_on_a_batch_is_told(judged):
    ended = judged(FROZEN)
    assert ended.code == 0, ended.err
    verdict = ended.record["verdict"]
    assert verdict["batch"] is None
    assert (verdict["axes"][0]["sizes"], verdict["axes"][0]["why"]) == ([1], "fails")


def test_a_metric_that_reads_single_samples_judges_no_mixed_batches(judged):
    ended = judged(MIXING, "--metric", "top1")
    assert ended.record["verdict"]["axes"][0]["why"] == "metric"


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
    (axis,) = ended.record["verdict"]["axes"]
    assert (axis["inputs"], axis["symbol"], axis["sizes"]) == ({"x": 1}, "h", sorted({*heights}))


def test_a_static_model_says_nothing(judged):
    still = parsed("(float[1, 4] x) => (float[1, 4] y) <float[1] w = {3}> { y = Mul(x, w) }")
    ended = judged(still)
    assert ended.code == 0, ended.err
    assert ended.record["verdict"]["axes"] == []


def test_outputs_on_record_have_one_size(call, tmp_path):
    onnx.save(PLAIN, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    np.savez(tmp_path / "y.npz", y=3 * X)
    ended = call("verify", "m.onnx", "y.npz", "--inputs", "x.npz", "-o", "run")
    assert ended.code == 0, ended.err
    (axis,) = ended.record["verdict"]["axes"]
    assert (axis["sizes"], axis["why"]) == ([1], "recorded")


RNG = np.random.default_rng(1)
NAMED = "a size that the file declares dynamic: constants of split"


@pytest.fixture
def files(tmp_path):
    """Save a model and inputs one by one, and in the batches that it takes."""
    sketch = frozen.frozen_batch(2, pooled=True)
    onnx.save(sketch.proto("pool_out"), tmp_path / "model.onnx")
    x = RNG.gamma(2, size=(12, 1, frozen.LENGTH, frozen.WIDTH)).astype(np.float32)
    np.savez(tmp_path / "ones.npz", x=x)
    np.savez(tmp_path / "twos.npz", x=x.reshape(6, 2, frozen.LENGTH, frozen.WIDTH))
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "command",
    [
        ("fix", "model.onnx", "--inputs", "ones.npz", "-o", "run"),
        ("verify", "model.onnx", "model.onnx", "--inputs", "ones.npz"),
        ("observe", "model.onnx", "--inputs", "ones.npz"),
        ("diagnose", "model.onnx", "--inputs", "ones.npz", "-o", "run"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_run_the_model_name_it(command, call, refused):
    assert NAMED in refused(3, *command)
    # Data in such batches are taken.
    ended = call(*(word.replace("ones", "twos") for word in command))
    assert ended.code == 0, ended.out + ended.err


@pytest.mark.usefixtures("files")
def test_the_advice_works(call):
    assert call("diagnose", "model.onnx", "--inputs", "twos.npz", "-o", "run").code == 0
    assert call("fix", "model.onnx", "--inputs", "twos.npz", "-o", "fixed").code == 0


@pytest.mark.usefixtures("files")
def test_lint_names_where_it_begins(call):
    assert "frozen-batch" in (told := call("lint", "model.onnx").out)
    assert "split" in told


@pytest.mark.usefixtures("files")
def test_another_failure_stays_what_it_is(refused, tmp_path):
    np.savez(tmp_path / "short.npz", x=np.ones((4, 0, frozen.LENGTH, frozen.WIDTH), np.float32))
    assert refused(3, "fix", "model.onnx", "--inputs", "short.npz", "-o", "run")
