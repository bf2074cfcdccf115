import numpy as np
import pytest

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.recorded import Recorded, fit_recorded, holds_outputs, load_recorded
from tests.polygraphy_files import write_feeds, write_runners

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
    with pytest.raises(UsageError, match="--runner trt- means 2 of the runners"):
        load_recorded(path, 2, "trt-")
    with pytest.raises(UsageError, match="--runner cuda means none of the runners"):
        load_recorded(path, 2, "cuda")


def test_another_number_of_iterations_is_an_error(tmp_path):
    path = write_runners(tmp_path / "o.json", {"trt": Y})
    with pytest.raises(CaseError, match=r"holds 2 iterations of trt, and the inputs are 1 sample;"):
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
    with pytest.raises(CaseError, match="output 'y' is 3×3, and the inputs are 2 samples"):
        load_recorded(tmp_path / "o.npz", 2)
    np.savez(tmp_path / "o.npz", y=1.0)
    with pytest.raises(CaseError, match="output 'y' is scalar"):
        load_recorded(tmp_path / "o.npz", 1)


def test_an_archive_names_no_runner(tmp_path):
    np.savez(tmp_path / "o.npz", y=np.ones(1))
    with pytest.raises(UsageError, match="names no runners"):
        load_recorded(tmp_path / "o.npz", 1, "trt")


def test_what_is_not_there_or_holds_inputs(tmp_path):
    with pytest.raises(CaseError, match="Found no file"):
        load_recorded(tmp_path / "o.json", 1)
    with pytest.raises(CaseError, match="Found no file"):
        load_recorded(tmp_path / "o.npz", 1)
    with pytest.raises(CaseError, match=r"Found no \.json file in the folder"):
        load_recorded(tmp_path, 1)
    with pytest.raises(CaseError, match="holds no outputs"):
        load_recorded(write_feeds(tmp_path / "i.json", Y), 2)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "found the outputs none, expected y"),
        ({"z": Y[0]["y"]}, "found the outputs z, expected y"),
        ({"y": np.zeros((3, 1), np.float16)}, r"trt, a, 'y' is 3×1, expected 1×3"),
        ({"y": np.zeros((1, 3), np.complex64)}, "has dtype complex64, expected float32"),
        ({"y": np.zeros((1, 3), np.int64)}, "has dtype int64, expected float32"),
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
