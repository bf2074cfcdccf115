import importlib.util

import numpy as np
import pytest

from halfwise.case import Case, Samples
from halfwise.errors import BackendMissing, CaseError, UsageError
from halfwise.graph.loading import network_from_proto
from halfwise.records import Criterion
from halfwise.tools.diagnose.export import exported
from halfwise.tools.diagnose.subject import (
    expected_tensors,
    order,
)
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.inputs.test_array_files import bomb
from tests.unit.tools.compare.copies import DATA, SAMPLES, network

HERE = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HERE, reason="needs PyTorch: pip install 'halfwise[torch]'")

RNG = np.random.default_rng(3)
VARIED = f32(RNG.normal(size=(6, 1, 8)))
MOVED = Samples(tuple(f"s{i}" for i in range(6)), lambda i: {"x": VARIED[i]})


def swinging(swing):
    """Give 1 and something that follows the input, as small as `swing`."""
    sketch = Sketch()
    x = sketch.input("x", [1, 8])
    moving = sketch.op("Mul", sketch.op("Tanh", x, name="t"), f32(swing), name="m")
    return network_from_proto(sketch.proto(sketch.op("Add", moving, f32(1), name="y")))


def outputs(data, swing):
    return [{"y_out": f32(1 + f32(swing) * np.tanh(x))} for x in data]


def judged(subject, data, swing):
    return exported(subject(swinging(swing), MOVED, expected=outputs(data, swing)))


@pytest.mark.parametrize("swing", [1.0, 1e-2])
def test_another_order_is_named(subject, swing):
    assert judged(subject, VARIED, swing).passed
    rung = judged(subject, np.roll(VARIED, 1, axis=0), swing)
    assert rung.passed is False
    assert "in another order: s0 has the outputs of s5, s1 has the outputs of s0" in rung.cause


def test_what_cannot_be_compared_says_nothing():
    given = outputs(VARIED, 1.0)
    assert order([], []) is None
    nan = [{"y_out": np.full_like(g["y_out"], np.nan)} for g in given]
    assert order(nan, given) is None
    whole = [{"y_out": np.zeros(3, np.int64)}] * 6
    assert order(whole, whole[::-1]) is None
    ragged = [{"y_out": f32(np.ones(i + 1))} for i in range(6)]
    assert order(ragged, ragged[::-1]) is None


@pytest.mark.parametrize("shift", range(1, 6))
def test_the_order_is_that_of_the_samples(shift):
    given, computed = outputs(np.roll(VARIED, shift, axis=0), 1e-3), outputs(VARIED, 1e-3)
    assert order(given, computed) == tuple((i - shift) % 6 for i in range(6))
    assert order(computed, computed) is None


MODULE = """
import numpy as np
import torch
from tests.unit.inputs.test_array_files import bomb
from tests.unit.tools.compare.copies import WEIGHTS

class Net(torch.nn.Module):
    def __init__(self, b):
        super().__init__()
        self.weights = [torch.from_numpy(w) for w in WEIGHTS]
        self.weights[1] = self.weights[1] * b
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, {parameters}):
        a = x @ self.weights[0]
        b = a @ self.weights[1]
        d = b - b.mean(1, keepdim=True) + a * 1e-12
        return {result}

def right():
    return Net(1.0)

def wrong():
    return Net(1.2), torch.zeros(4, 16)

def half():
    return torch.nn.Linear(16, 16).half()

def number():
    return 3
"""
RESULT = "self.drop(torch.softmax(d, -1) @ self.weights[2])"


@pytest.fixture
def case():
    return Case(network(), SAMPLES, SAMPLES.select(()), Criterion(), None, (), "")


def file(folder, result=RESULT, parameters="x"):
    path = folder / "net.py"
    path.write_text(MODULE.format(result=result, parameters=parameters))
    return path


def test_tensors_on_record(case, tmp_path):
    np.savez(tmp_path / "y.npz", y_out=DATA)
    tensors = expected_tensors(case, tmp_path / "y.npz", None)
    assert np.array_equal(tensors[1]["y_out"], DATA[1])


def test_outputs_of_more_samples_than_the_inputs_have_are_refused(case, tmp_path):
    np.savez(tmp_path / "y.npz", y_out=np.concatenate([DATA, DATA]))
    with pytest.raises(CaseError, match="holds 'y_out' of 6 samples; the inputs are 3 samples"):
        expected_tensors(case, tmp_path / "y.npz", None)
    np.savez(tmp_path / "rows.npz", y_out=np.concatenate([*DATA, *DATA]))
    with pytest.raises(CaseError, match="holds 'y_out' of 6 samples; the inputs are 3 samples"):
        expected_tensors(case, tmp_path / "rows.npz", None)


def test_what_is_no_tensor_of_the_model_is_not_unpacked(case, tmp_path):
    path = bomb(tmp_path / "y.npz", (len(SAMPLES) << 24, 1, 8))
    with pytest.raises(CaseError, match="holds no tensor of the model: x"):
        expected_tensors(case, path, None)


@pytest.mark.skipif(HERE, reason="PyTorch is here")
def test_without_torch(case, tmp_path):
    with pytest.raises(BackendMissing, match="PyTorch is not installed"):
        expected_tensors(case, f"{file(tmp_path)}:right", None)


def test_a_module_has_no_runners(case, tmp_path):
    with pytest.raises(UsageError, match="names no runners"):
        expected_tensors(case, f"{file(tmp_path)}:right", "trt")


@needs_torch
@pytest.mark.parametrize(
    ("result", "parameters"),
    [
        (RESULT, "x"),
        (RESULT, "image, mask=None"),
        (f"{{'hidden': a, 'y_out': {RESULT}}}", "x"),
        (f"[{RESULT}]", "x"),
    ],
)
def test_inputs_and_outputs_by_name_or_in_order(case, tmp_path, result, parameters):
    path = file(tmp_path, result, parameters)
    if parameters != "x":
        path.write_text(path.read_text().replace("x @ self", "image @ self"))
    tensors = expected_tensors(case, f"{path}:right", None)
    assert [list(found) for found in tensors] == [["y_out"]] * 3
    assert tensors[0]["y_out"].shape == (4, 16)


@needs_torch
def test_what_does_not_fit(case, tmp_path):
    with pytest.raises(CaseError, match="returns 2 tensors, but the model has 1 outputs"):
        expected_tensors(case, f"{file(tmp_path, '(a, b)')}:right", None)
    path = file(tmp_path, parameters="")
    with pytest.raises(CaseError, match="has inputs x, but the module"):
        expected_tensors(case, f"{path}:right", None)
    with pytest.raises(UsageError, match="names no function"):
        expected_tensors(case, path, None)
    path = file(tmp_path, "x[:, :1] @ self.weights[0]")
    with pytest.raises(CaseError, match=r"raised RuntimeError: .* on inputs of shape x"):
        expected_tensors(case, f"{path}:right", None)
    with pytest.raises(CaseError, match="returns 0 tensors"):
        expected_tensors(case, f"{file(tmp_path, 'None')}:right", None)
    for factory, message in (("number", "returned int, not a torch"), ("half", "stores torch.fl")):
        with pytest.raises(CaseError, match=message):
            expected_tensors(case, f"{path}:{factory}", None)
