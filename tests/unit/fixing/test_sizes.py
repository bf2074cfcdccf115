import numpy as np
import onnx

from halfwise.case import Samples
from halfwise.fixing import sizes
from halfwise.fixing.sizes import judge_sizes
from halfwise.judging.judge import judge
from halfwise.judging.reference import inspected_reference
from halfwise.options.loading import load_case, load_model
from halfwise.options.options import understand

RNG = np.random.default_rng(0)


def parsed(text):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


def judged(reference, candidate, x, **options):
    """Return the verdict on all samples, sizes included."""
    request = understand({"x": x}, options)
    case = load_case(reference, request.data, request.criterion, split=False)
    references, _ = inspected_reference(case.network, case.calibration)
    model = load_model(candidate).model
    samples = case.calibration
    alone = judge(model, samples, references, case.criterion, case.metric).verdict
    return alone, judge_sizes(alone, case, model, samples, references, request.settings)


SCALED = "(float[n, 4] x) => (float[n, 4] y) <float[1] w = {3}> { y = Mul(x, w) }"
X = RNG.uniform(1, 2, (12, 1, 4)).astype(np.float32)


def test_few_samples_are_put_together():
    alone, verdict = judged(parsed(SCALED), parsed(SCALED), X)
    assert verdict.batch is not None
    assert len(verdict.batch.samples) == sizes._JUDGED
    assert verdict.batch.rel_max == {"y": 0.0}
    assert verdict.model_copy(update={"batch": None, "axes": ()}) == alone


def test_errors_count_against_the_values_of_all_samples():
    """Four small samples alone would be out of the tolerance that all of them have together."""
    x = X.copy()
    x[4:] *= 1000
    shifted = SCALED.replace("<", "<float[1] b = {0.5}, ").replace(
        "y = Mul(x, w)", "m = Mul(x, w) y = Add(m, b)"
    )
    alone, verdict = judged(parsed(SCALED), parsed(shifted), x)
    assert alone.passed
    assert verdict.passed
    assert verdict.batch is not None
    assert verdict.batch.rel_max["y"] > 0.01


def test_a_metric_judges_more_of_them():
    x = RNG.uniform(1, 2, (80, 1, 4)).astype(np.float32)
    _, verdict = judged(parsed(SCALED), parsed(SCALED), x, metric="top1")
    assert verdict.batch is not None
    assert len(verdict.batch.samples) == sizes._JUDGED_BY_METRIC


def test_samples_of_two_batch_sizes_need_no_more():
    ones = [{"x": x} for x in X]
    twos = [{"x": np.concatenate([x, x])} for x in X[:3]]
    request = understand({"x": X}, {})
    case = load_case(parsed(SCALED), request.data, request.criterion, split=False)
    both = [*ones, *twos]
    samples = Samples(tuple(map(str, range(15))), both.__getitem__)
    references, _ = inspected_reference(case.network, samples)
    model = case.network.model
    alone = judge(model, samples, references, case.criterion, None).verdict
    verdict = judge_sizes(alone, case, model, samples, references, request.settings)
    assert verdict.batch is None
    assert [axis.sizes for axis in verdict.axes] == [(1, 2)]


def test_axes_of_one_symbol_are_one():
    text = """(float[n, t] x, float[t] z) => (float[n, t] y) { y = Mul(x, z) }"""
    request = understand({"x": X, "z": np.ones((12, 4), np.float32)}, {})
    case = load_case(parsed(text), request.data, request.criterion, split=False)
    references, _ = inspected_reference(case.network, case.calibration)
    model = case.network.model
    alone = judge(model, case.calibration, references, case.criterion, None).verdict
    verdict = judge_sizes(alone, case, model, case.calibration, references, request.settings)
    assert [(axis.inputs, axis.symbol) for axis in verdict.axes] == [
        ({"x": 0}, "n"),
        ({"x": 1, "z": 0}, "t"),
    ]


def test_a_static_model_keeps_its_verdict():
    still = parsed(SCALED.replace("n, 4", "1, 4"))
    alone, verdict = judged(still, still, X)
    assert verdict is alone


def test_whole_batches_of_a_model_that_mixes_samples():
    text = """(float[n, 4] x) => (float[n, 4] y)
    <float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0},
     float[4] m = {0, 0, 0, 0}, float[4] v = {1, 1, 1, 1}>
    { y, mean, variance = BatchNormalization <training_mode = 1> (x, s, b, m, v) }"""
    alone, verdict = judged(parsed(text), parsed(text), RNG.normal(size=(12, 3, 4)).astype("f4"))
    assert alone.passed
    assert verdict.batch is not None
    assert (verdict.batch.whole, verdict.batch.passed, verdict.batch.size) == (True, True, 6)
    assert verdict.batch.samples == ("inputs[0] … inputs[1] (2)", "inputs[2] … inputs[3] (2)")


def sized(text, **x):
    request = understand(x, {})
    case = load_case(parsed(text), request.data, request.criterion, split=False)
    references, _ = inspected_reference(case.network, case.calibration)
    model, samples = case.network.model, case.calibration
    alone = judge(model, samples, references, case.criterion, None).verdict
    verdict = judge_sizes(alone, case, model, samples, references, request.settings)
    return [(axis.inputs, axis.sizes) for axis in verdict.axes]


def test_a_symbol_that_stands_for_two_sizes_of_a_sample_is_no_one_size():
    """Exporters write one placeholder on every axis that they do not know."""
    one = "(float[1, s, s] x) => (float[1, s, s] y) { y = Neg(x) }"
    x = np.ones((12, 1, 3, 5), np.float32)
    assert sized(one, x=x) == [({"x": 1}, (3,)), ({"x": 2}, (5,))]
    two = (
        "(float[1, s] x, float[1, s] z) => (float[1, s] y, float[1, s] v) { y = Neg(x) v = Neg(z)}"
    )
    data = {"x": np.ones((12, 1, 3), np.float32), "z": np.ones((12, 1, 5), np.float32)}
    assert sized(two, **data) == [({"x": 1}, (3,)), ({"z": 1}, (5,))]
