import base64
import io
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.fitting import InputSpec
from halfwise.inputs.recorded import (
    Recorded,
    fit_recorded,
    holds_outputs,
    load_feeds,
    load_recorded,
    read_runners,
)
from halfwise.reporting.remarks import note_text
from tests.polygraphy_files import encoded, write_feeds, write_runners

Y = [{"y": np.full((1, 3), i, np.float16)} for i in range(2)]
REFERENCES = [{"y": np.zeros((1, 3), np.float32)} for _ in range(2)]
IDS = ("a", "b")


def test_what_names_outputs_and_what_a_model(tmp_path):
    assert holds_outputs(tmp_path / "o.json")
    assert holds_outputs(tmp_path / "o.NPZ")
    assert holds_outputs(tmp_path)
    assert not holds_outputs(tmp_path / "m.onnx")


def test_iterations_of_the_only_runner(tmp_path):
    path = write_runners(tmp_path / "o.json", {"trt": Y})
    assert load_recorded(path, 2).runner == "trt"
    fitted = fit_recorded(load_recorded(path, 2), REFERENCES, IDS)
    assert fitted[1]["y"].dtype == np.float32
    np.testing.assert_array_equal(fitted[1]["y"], Y[1]["y"])


def test_a_folder_of_iterations(tmp_path):
    for i, outputs in enumerate(Y):
        write_runners(tmp_path / f"{i:010}.json", {"trt": [outputs]})
    assert load_recorded(tmp_path, 2).outputs[1]["y"][0, 0] == 1


def test_runners_are_chosen_by_name_or_its_beginning(tmp_path):
    names = ("onnxrt-N0", "trt", "trt-N1", "trt-N2")
    path = write_runners(tmp_path / "o.json", dict.fromkeys(names, Y))
    assert load_recorded(path, 2, "onnx").runner == "onnxrt-N0"
    assert load_recorded(path, 2, "trt").runner == "trt"
    assert load_recorded(path, 2, "trt-N2").runner == "trt-N2"
    with pytest.raises(UsageError, match=r"outputs of 4 runners: onnxrt-N0, trt, trt-N1, trt-N2\."):
        load_recorded(path, 2)
    with pytest.raises(UsageError, match="--runner trt- matches 2 runners"):
        load_recorded(path, 2, "trt-")
    with pytest.raises(UsageError, match="--runner cuda matches no runner"):
        load_recorded(path, 2, "cuda")


def test_another_number_of_iterations_is_an_error(tmp_path):
    path = write_runners(tmp_path / "o.json", {"trt": Y})
    with pytest.raises(CaseError, match=r"holds 2 iterations of trt, but the inputs are 1 sample"):
        load_recorded(path, 1)


@pytest.mark.parametrize(
    ("shape", "reference"),
    [((2, 3), (1, 3)), ((2, 1, 3), (1, 3)), ((2, 3), (3,)), ((2,), ()), ((8, 3), (4, 3))],
)
def test_arrays_of_an_archive_hold_equal_parts(tmp_path, shape, reference):
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    np.savez(tmp_path / "o.npz", y=values)
    recorded = load_recorded(tmp_path / "o.npz", 2)
    references = [{"y": np.zeros(reference, np.float32)}] * 2
    fitted = fit_recorded(recorded, references, IDS)
    assert recorded.runner == "o.npz"
    np.testing.assert_array_equal([f["y"] for f in fitted], values.reshape(2, *reference))


def test_an_archive_of_one_sample(tmp_path):
    np.savez(tmp_path / "o.npz", y=np.ones((4, 3), np.float32))
    recorded = load_recorded(tmp_path / "o.npz", 1)
    (fitted,) = fit_recorded(recorded, [{"y": np.zeros((4, 3), np.float32)}], ["a"])
    assert fitted["y"].shape == (4, 3)


def test_an_archive_that_does_not_divide_is_an_error(tmp_path):
    np.savez(tmp_path / "o.npz", y=np.ones((3, 3)))
    with pytest.raises(CaseError, match="output 'y' is 3×3, but the inputs are 2 samples"):
        load_recorded(tmp_path / "o.npz", 2)
    np.savez(tmp_path / "o.npz", y=1.0)
    with pytest.raises(CaseError, match="output 'y' is scalar"):
        load_recorded(tmp_path / "o.npz", 1)


def test_an_archive_names_no_runner(tmp_path):
    np.savez(tmp_path / "o.npz", y=np.ones(1))
    with pytest.raises(UsageError, match="names no runners"):
        load_recorded(tmp_path / "o.npz", 1, "trt")


def test_a_file_of_another_kind_holds_no_outputs(tmp_path):
    (tmp_path / "m.txt").write_text("top1: 0.9")
    with pytest.raises(
        CaseError, match=r"m\.txt holds no recorded outputs; expected an \.npz file"
    ):
        load_recorded(tmp_path / "m.txt", 1)


def test_what_is_not_there_or_holds_inputs(tmp_path):
    with pytest.raises(CaseError, match="There is no file"):
        load_recorded(tmp_path / "o.json", 1)
    with pytest.raises(CaseError, match="There is no file"):
        load_recorded(tmp_path / "o.npz", 1)
    with pytest.raises(CaseError, match=r"Found no \.json file in the folder"):
        load_recorded(tmp_path, 1)
    with pytest.raises(CaseError, match="holds no outputs"):
        load_recorded(write_feeds(tmp_path / "i.json", Y), 2)


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
WEIGHT = (np.arange(18, dtype=np.float32).reshape(6, 3) % 5 - 2) / 4


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


def test_outputs_that_the_tool_wrote():
    runners = read_runners([REAL / "outputs.json"])
    first, second = runners
    assert first.startswith("onnxrt-runner-N0-")
    assert second.startswith("onnxrt-runner-N1-")
    for iterations in runners.values():
        for outputs, feed in zip(iterations, FEEDS, strict=True):
            np.testing.assert_array_equal(outputs["y"], feed["x"] @ WEIGHT)


def test_what_tests_write_is_what_the_tool_writes(tmp_path):
    """But for the times, which no two runs share."""
    written = write_feeds(tmp_path / "i.json", FEEDS).read_text()
    assert written == (REAL / "inputs.json").read_text()
    real = json.loads((REAL / "outputs.json").read_text())
    runners = read_runners([REAL / "outputs.json"])
    mine = json.loads(write_runners(tmp_path / "o.json", runners).read_text())
    for _, iterations in (*real["lst"], *mine["lst"]):
        for iteration in iterations:
            iteration["runtime"] = 0
    assert mine == real


def test_the_installed_tool_reads_and_writes_the_same(tmp_path):
    comparator = pytest.importorskip("polygraphy.comparator")
    serde = pytest.importorskip("polygraphy.json")
    serde.save_json(FEEDS, str(tmp_path / "i.json"))
    samples = load_feeds([tmp_path / "i.json"], [X]).samples
    np.testing.assert_array_equal(samples[2]["x"], FEEDS[2]["x"])
    results = comparator.RunResults()
    results.add([{"y": f["x"].astype(np.float16)} for f in FEEDS], runner_name="trt")
    results.save(str(tmp_path / "o.json"))
    (iterations,) = read_runners([tmp_path / "o.json"]).values()
    assert iterations[1]["y"].dtype == np.float16
    mine = write_runners(tmp_path / "mine.json", {"trt": iterations})
    loaded = comparator.RunResults.load(str(mine))
    np.testing.assert_array_equal(loaded["trt"][1]["y"], FEEDS[1]["x"])


def test_a_folder_holds_a_file_for_each_iteration(tmp_path):
    files = [tmp_path / f"{i:010}.json" for i in range(3)]
    for file, feed in zip(files, FEEDS, strict=True):
        file.write_text(json.dumps({"x": encoded(feed["x"])}))
    samples = load_feeds(files, [X]).samples
    assert samples.ids[2] == "0000000002.json"
    np.testing.assert_array_equal(samples[2]["x"], FEEDS[2]["x"])
    for file, feed in zip(files, FEEDS, strict=True):
        write_runners(file, {"a": [feed], "b": [feed]})
    assert {name: len(outputs) for name, outputs in read_runners(files).items()} == {"a": 3, "b": 3}


def former(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return {"__polygraphy_encoded_ndarray": "polygraphy_serialized_json_type"}, stream.getvalue()


def test_former_versions(tmp_path):
    """Another mark of types; arrays as Latin-1 text, or in an archive."""
    mark, content = former(FEEDS[0]["x"])
    archive = io.BytesIO()
    np.savez(archive, FEEDS[0]["x"])
    payloads = (
        base64.b64encode(content).decode(),
        content.decode("latin-1"),
        base64.b64encode(archive.getvalue()).decode(),
    )
    path = tmp_path / "i.json"
    path.write_text(json.dumps([{"x": {"array": text, **mark}} for text in payloads]))
    for sample in load_feeds([path], [X]).samples:
        np.testing.assert_array_equal(sample["x"], FEEDS[0]["x"])


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
        (holding(b"junk"), "has a wrong header"),
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


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"lst": []},
        {"lst": [["trt"]]},
        {"lst": [["trt", 1]]},
        {"lst": [[["a", "b"], [{"outputs": {}}]]]},
        {"lst": [["trt", [{"outputs": {"y": 1}}]]]},
        {"lst": [["trt", [7]]]},
    ],
)
def test_what_holds_no_outputs_is_an_error(tmp_path, content):
    path = tmp_path / "o.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CaseError, match="holds no outputs in Polygraphy's format"):
        read_runners([path])


@given(
    real=st.sampled_from([("inputs.json", load_feeds, [X]), ("outputs.json", read_runners)]),
    place=st.floats(0, 1, exclude_max=True),
    byte=st.sampled_from([*b'[]{}",:0129-AZaz=/+ \\\x00\xff']),
)
def test_a_garbled_file_is_read_or_refused(tmp_path_factory, real, place, byte):
    name, read, *arguments = real
    content = bytearray((REAL / name).read_bytes())
    content[int(place * len(content))] = byte
    path = tmp_path_factory.getbasetemp() / "garbled.json"
    path.write_bytes(content)
    with suppress(CaseError):
        read([path], *arguments)
