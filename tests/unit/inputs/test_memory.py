import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.inputs.memory import load_mapping, load_sequence, load_stream
from halfwise.inputs.spec import InputSpec

X = InputSpec("x", np.dtype(np.float32), ("n", 2))


def stream(tmp_path, body):
    path = tmp_path / "data.py"
    path.write_text(f"import numpy as np\ndef f():\n    {body}\n")
    return f"{path}:f"


def test_a_mapping_is_understood_like_an_archive_and_not_copied():
    array = np.zeros((3, 2), np.float32)
    samples = load_mapping({"x": array}, [X], "inputs").samples
    assert samples.ids == ("inputs[0]", "inputs[1]", "inputs[2]")
    assert np.shares_memory(samples[1]["x"], array)


def test_a_sequence_holds_one_sample_each():
    samples = load_sequence([{"x": np.ones((5, 2))}, {"x": np.zeros(2)}], [X], "inputs").samples
    assert [s["x"].shape for s in samples] == [(5, 2), (1, 2)]
    assert samples[0]["x"].dtype == np.float32


def test_values_in_memory_are_checked_at_once():
    bad = np.array([[1, 2], [3, np.inf]], np.float32)
    with pytest.raises(CaseError, match=r"inputs\[1\]: input 'x' holds 0 NaN and 1 inf"):
        load_mapping({"x": bad}, [X], "inputs")
    with pytest.raises(CaseError, match=r"inputs\[1\]: input 'x' holds 0 NaN and 1 inf"):
        load_sequence([{"x": row} for row in bad], [X], "inputs")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "inputs is empty, expected at least one sample"),
        ([np.ones(2)], r"inputs\[0\] is a ndarray, expected a dictionary"),
        (np.ones(2), "The inputs are a ndarray, expected a path"),
        (None, "The inputs are a NoneType"),
        ([{"x": np.ones((1, 2, 2))}], r"inputs\[0\]: input 'x' has rank 3"),
        ([{"x": np.ones(2)}, {}], r"inputs\[1\]: missing input 'x'"),
        ([{"x": np.array([None, {}])}], r"inputs\[0\]: input 'x' has dtype Python objects"),
    ],
)
def test_bad_sequences_are_errors(items, message):
    with pytest.raises(CaseError, match=message):
        load_sequence(items, [X], "inputs")


def test_a_stream_may_fill_the_same_array_again(tmp_path):
    source = stream(tmp_path, "a = np.zeros(2)\n    for a[0] in range(3): yield {'x': a}")
    samples = load_stream(source, [X]).samples
    assert samples.ids == ("data.py:f[0]", "data.py:f[1]", "data.py:f[2]")
    assert [s["x"][0, 0] for s in samples] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield np.ones(2)", r"data.py:f\[0\] is a ndarray, expected a dictionary"),
        ("return []", "data.py:f is empty"),
        ("yield {'x': np.full(2, np.nan)}", r"data.py:f\[0\]: input 'x' holds 2 NaN"),
        ("raise OSError('gone')", "raised OSError: gone"),
    ],
)
def test_bad_streams_are_errors(tmp_path, body, message):
    with pytest.raises(CaseError, match=message):
        load_stream(stream(tmp_path, body), [X])
