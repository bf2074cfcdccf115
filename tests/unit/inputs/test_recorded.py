import base64
import io
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.inputs.fitting import InputSpec
from halfwise.inputs.recorded import (
    Recorded,
    fit_recorded,
    holds_outputs,
    load_feeds,
    load_recorded,
)
from halfwise.reporting.remarks import note_text
from tests.polygraphy_files import encoded, write_feeds

Y = [{"y": np.full((1, 3), i, np.float16)} for i in range(2)]
REFERENCES = [{"y": np.zeros((1, 3), np.float32)} for _ in range(2)]
IDS = ("a", "b")


def test_what_names_outputs_and_what_a_model(tmp_path):
    assert holds_outputs(tmp_path / "o.json")
    assert holds_outputs(tmp_path / "o.NPZ")
    assert holds_outputs(tmp_path)
    assert not holds_outputs(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("shape", "reference"),
    [((2, 3), (1, 3)), ((2, 1, 3), (1, 3)), ((2, 3), (3,)), ((2,), ()), ((8, 3), (4, 3))],
)
def test_arrays_of_an_archive_hold_equal_parts(tmp_path, shape, reference):
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    np.savez(tmp_path / "o.npz", y=values)
    recorded = load_recorded(tmp_path / "o.npz", 2, wanted="y")
    references = [{"y": np.zeros(reference, np.float32)}] * 2
    fitted = fit_recorded(recorded, references, IDS)
    assert recorded.name == "o.npz"
    np.testing.assert_array_equal([f["y"] for f in fitted], values.reshape(2, *reference))


def test_an_archive_of_one_sample(tmp_path):
    np.savez(tmp_path / "o.npz", y=np.ones((4, 3), np.float32))
    recorded = load_recorded(tmp_path / "o.npz", 1, wanted="y")
    (fitted,) = fit_recorded(recorded, [{"y": np.zeros((4, 3), np.float32)}], ["a"])
    assert fitted["y"].shape == (4, 3)


def test_an_archive_that_does_not_divide_is_an_error(tmp_path):
    np.savez(tmp_path / "o.npz", y=np.ones((3, 3)))
    with pytest.raises(CaseError, match="output 'y' is 3×3, but the inputs are 2 samples"):
        load_recorded(tmp_path / "o.npz", 2, wanted="y")
    np.savez(tmp_path / "o.npz", y=1.0)
    with pytest.raises(CaseError, match="output 'y' is scalar"):
        load_recorded(tmp_path / "o.npz", 1, wanted="y")


def test_what_is_no_archive_holds_no_outputs(tmp_path):
    (tmp_path / "m.txt").write_text("top1: 0.9")
    for name, told in (
        ("m.txt", r"m\.txt holds no recorded outputs; expected an \.npz file"),
        ("o.npz", "There is no file"),
        (".", "holds no recorded outputs"),
    ):
        with pytest.raises(CaseError, match=told):
            load_recorded(tmp_path / name, 1, wanted="y")


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "found the outputs none; expected y"),
        ({"z": Y[0]["y"]}, "found the outputs z; expected y"),
        # A part of a .npz, which has an axis of its own.
        ({"y": np.zeros((1, 1, 5), np.float16)}, r"trt, a, 'y' is 1×5; expected 1×3"),
        ({"y": np.zeros((3, 1), np.float16)}, r"trt, a, 'y' is 3×1; expected 1×3"),
        ({"y": np.zeros((1, 3), np.complex64)}, "has dtype complex64; expected float32"),
        ({"y": np.zeros((1, 3), np.int64)}, "has dtype int64; expected float32"),
        ({"y": np.array([["1", "2", "3"]])}, "has dtype str"),
    ],
)
def test_outputs_that_are_not_the_models(outputs, message):
    with pytest.raises(CaseError, match=message):
        fit_recorded(Recorded("trt", (outputs,)), REFERENCES[:1], ["a"])


def test_integers_of_fewer_bits_and_infinities_stay_what_they_are():
    given = Recorded("trt", ({"i": np.array([3], np.int32), "y": np.array([np.inf], np.float16)},))
    reference = {"i": np.array([3]), "y": np.zeros(1, np.float32)}
    (fitted,) = fit_recorded(given, [reference], ["a"])
    assert fitted["i"].dtype == np.int64
    assert fitted["y"][0] == np.inf


X = InputSpec("x", np.dtype(np.float32), ("n", 6))
REAL = Path(__file__).parent / "polygraphy_0.53"
FEEDS = [{"x": np.arange(12, dtype=np.float32).reshape(2, 6) / 8 + i} for i in range(3)]


def test_inputs_that_the_tool_wrote():
    loaded = load_feeds([REAL / "inputs.json"], [X])
    assert loaded.samples.ids == ("inputs.json[0]", "inputs.json[1]", "inputs.json[2]")
    for sample, feed in zip(loaded.samples, FEEDS, strict=True):
        np.testing.assert_array_equal(sample["x"], feed["x"])
    assert tuple(map(note_text, loaded.notes)) == (
        "3 samples",
        "input 'x': 2×6 in the first sample",
    )


def test_a_single_input_of_another_name_is_taken_with_a_note():
    loaded = load_feeds([REAL / "inputs.json"], [InputSpec("y", np.dtype(np.float32), ("n", 6))])
    np.testing.assert_array_equal(loaded.samples[0]["y"], FEEDS[0]["x"])
    assert note_text(loaded.notes[1]) == "input 'y', taken from 'x': 2×6 in the first sample"


def test_what_tests_write_is_what_the_tool_writes(tmp_path):
    written = write_feeds(tmp_path / "i.json", FEEDS).read_text()
    assert written == (REAL / "inputs.json").read_text()


def test_the_installed_tool_writes_the_same(tmp_path):
    serde = pytest.importorskip("polygraphy.json")
    serde.save_json(FEEDS, str(tmp_path / "i.json"))
    samples = load_feeds([tmp_path / "i.json"], [X]).samples
    np.testing.assert_array_equal(samples[2]["x"], FEEDS[2]["x"])


def test_a_folder_holds_a_file_for_each_iteration(tmp_path):
    files = [tmp_path / f"{i:010}.json" for i in range(3)]
    for file, feed in zip(files, FEEDS, strict=True):
        file.write_text(json.dumps({"x": encoded(feed["x"])}))
    samples = load_feeds(files, [X]).samples
    assert samples.ids[2] == "0000000002.json"
    np.testing.assert_array_equal(samples[2]["x"], FEEDS[2]["x"])


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def holding(content):
    text = base64.b64encode(content).decode()
    return json.dumps([{"x": {"array": text, "polygraphy_class": "ndarray"}}])


PICKLE = npy(np.array([{}], object), allow_pickle=True)
LYING = npy(np.ones(4)).replace(b"(4,), }", b"(4000000,), }")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a readable .json file of Polygraphy"),
        ('[{"x": ', "not a readable .json"),
        ("[" * 100_000, "not a readable .json"),
        ("\ufeff[]", "not a readable .json"),
        ('[{"x": {"array": 7, "polygraphy_class": "ndarray"}}]', "not a readable"),
        ('[{"x": {"polygraphy_class": "ndarray"}}]', "not a readable"),
        (holding(b"junk"), "not a readable"),
        (holding(PICKLE), "Object arrays cannot be loaded"),
        (holding(LYING), "not a readable"),
        ("[]", "holds no inputs in Polygraphy's format"),
        ("[{}]", "holds no inputs"),
        ('{"x": [1, 2]}', "holds no inputs"),
        ('{"lst": [], "polygraphy_class": "RunResults"}', "holds no inputs"),
        ('[{"x": {"tensor": "gAI=", "polygraphy_class": "Tensor"}}]', "holds PyTorch tensors"),
    ],
)
def test_what_holds_no_inputs_is_an_error(tmp_path, text, message):
    path = tmp_path / "i.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CaseError, match=message) as error:
        load_feeds([path], [X])
    assert "i.json" in error.value.message
    assert len(error.value.message) < 500


@given(
    place=st.floats(0, 1, exclude_max=True),
    byte=st.sampled_from([*b'[]{}",:0129-AZaz=/+ \\\x00\xff']),
)
def test_a_garbled_file_is_read_or_refused(tmp_path_factory, place, byte):
    content = bytearray((REAL / "inputs.json").read_bytes())
    content[int(place * len(content))] = byte
    path = tmp_path_factory.getbasetemp() / "garbled.json"
    path.write_bytes(content)
    with suppress(CaseError):
        load_feeds([path], [X])
