import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.graph.model import Network
from halfwise.options.loading import load_case, load_model, load_start
from halfwise.options.options import Data
from halfwise.records import Criterion, Run
from halfwise.reporting.remarks import note_text
from halfwise.store import write_run
from tests import models
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting import runs


@pytest.fixture
def ill():
    return models.small()


def load(ill, criterion=None, *, split=True, **data):
    data.setdefault("inputs", dict(ill.inputs))
    return load_case(ill.proto, Data(**data), criterion or Criterion(), split=split)


def notes_of(case):
    return [*map(note_text, case.notes)]


def test_every_fourth_sample_is_held_out(ill):
    case = load(ill)
    assert case.calibration.ids == tuple(f"inputs[{i}]" for i in (0, 1, 2, 4, 5, 6))
    assert case.heldout.ids == ("inputs[3]", "inputs[7]")
    np.testing.assert_array_equal(case.heldout[1]["x"], ill.inputs["x"][7])
    assert "6 samples to search on, 2 held out" in notes_of(case)
    assert case.real


def test_without_a_split_all_are_for_calibration(ill):
    case = load(ill, split=False)
    assert (len(case.calibration), len(case.heldout)) == (8, 0)
    assert not any("held out" in note for note in notes_of(case))


def test_a_second_set_is_held_out_as_it_is(ill, tmp_path):
    np.save(tmp_path / "other.npy", ill.inputs["x"][:3] / 2)
    case = load(ill, heldout=tmp_path / "other.npy")
    assert (len(case.calibration), len(case.heldout)) == (8, 3)
    np.testing.assert_array_equal(case.heldout[2]["x"], ill.inputs["x"][2] / 2)
    assert any(note.startswith("held out: ") for note in notes_of(case))


def test_a_second_set_means_nothing_where_nothing_is_held_out(ill):
    with pytest.raises(UsageError, match="--heldout"):
        load(ill, heldout=dict(ill.inputs), split=False)


def test_a_single_sample_is_warned_about(ill):
    case = load(ill, inputs={"x": ill.inputs["x"][:1]})
    assert (len(case.calibration), len(case.heldout)) == (1, 0)
    assert any("single sample" in note for note in notes_of(case))


def test_held_out_copies_of_what_is_searched_on_are_left_out(ill, tmp_path):
    x = ill.inputs["x"]
    (tmp_path / "labels.json").write_text("[10, 11, 12]")
    heldout = {"x": np.stack([x[5], x[0] / 2, x[0]])}
    case = load(ill, heldout=heldout, heldout_labels=tmp_path / "labels.json")
    assert (case.heldout.ids, case.heldout.labels) == (("inputs[1]",), (11,))
    (note,) = [n for n in notes_of(case) if "copies" in n]
    assert note.startswith("warning: left out 2 of 3 held-out samples")
    alone = load(ill, heldout={"x": heldout["x"][1:2]})
    assert case.data_sha256 == alone.data_sha256
    assert not any(note.kind == "copies" for note in alone.notes)


def test_held_out_samples_that_all_were_searched_on_are_none(ill):
    case = load(ill, heldout=dict(ill.inputs))
    assert (len(case.calibration), len(case.heldout)) == (8, 0)
    (note,) = [n for n in case.notes if n.kind == "copies"]
    assert (note.facts["copies"], note.facts["heldout"]) == (8, 8)


def test_copies_among_the_inputs_are_not_on_both_sides(ill):
    x = ill.inputs["x"].copy()
    x[3] = x[6]
    case = load(ill, inputs={"x": x})
    assert case.calibration.ids == tuple(f"inputs[{i}]" for i in (0, 1, 2, 4, 5, 6))
    assert case.heldout.ids == ("inputs[7]",)
    # Where nothing is held out, copies do no harm.
    assert len(load(ill, inputs={"x": x}, split=False).calibration) == 8


def test_labels_go_with_their_samples(ill, tmp_path):
    (tmp_path / "labels.json").write_text("[10, 11, 12, 13, 14, 15, 16, 17]")
    case = load(ill, labels=tmp_path / "labels.json")
    assert case.calibration.labels == (10, 11, 12, 14, 15, 16)
    assert case.heldout.labels == (13, 17)


def test_the_second_set_has_its_own_labels(ill, tmp_path):
    (tmp_path / "labels.json").write_text("[0, 1, 2]")
    heldout = {"x": ill.inputs["x"][:3] / 2}
    case = load(ill, heldout=heldout, heldout_labels=tmp_path / "labels.json")
    assert case.calibration.labels is None
    assert case.heldout.labels == (0, 1, 2)


def test_the_hash_is_that_of_all_samples(ill):
    base = load(ill).data_sha256
    assert load(ill).data_sha256 == base
    for index in (0, 3):
        changed = ill.inputs["x"].copy()
        changed[index, 0, 0] += 1
        assert load(ill, inputs={"x": changed}).data_sha256 != base


def test_random_inputs_are_not_real(ill):
    case = load(ill, inputs="random")
    assert not case.real
    assert any("random" in note for note in notes_of(case))
    assert case.data_sha256 == load(ill, inputs="random").data_sha256


def test_random_samples_are_not_real_wherever_they_stand(ill):
    case = load(ill, heldout="random")
    assert len(case.heldout) == 4
    assert not case.real


@pytest.mark.parametrize("where", ["inputs", "heldout"])
def test_noise_is_no_more_real_for_being_in_a_file(ill, where):
    shape = ill.inputs["x"].shape
    noise = {"x": np.random.default_rng(0).standard_normal((500, *shape[1:])).astype(np.float32)}
    case = load(ill, **{where: noise})
    assert not case.real
    assert [found.kind for found in case.made_up] == ["normal"]
    assert any(
        note.removeprefix("warning: ")
        .removeprefix("held out: ")
        .startswith("input 'x' looks like standard normal noise (mean ")
        for note in notes_of(case)
    )


def test_metrics_are_found(ill, tmp_path):
    assert load(ill).metric is None
    assert load(ill, Criterion(metric="psnr")).metric is not None
    (tmp_path / "score.py").write_text(
        "import numpy as np\n\n\n"
        "def score(reference, candidate, labels):\n    return np.float32(len(candidate))\n\n\n"
        "def text(reference, candidate, labels):\n    return 'good'\n"
    )
    case = load(ill, Criterion(metric=f"{tmp_path}/score.py:score"))
    assert case.metric is not None
    value = case.metric([], [{}, {}], None)
    assert (value, type(value)) == (2.0, float)
    text = load(ill, Criterion(metric=f"{tmp_path}/score.py:text")).metric
    assert text is not None
    with pytest.raises(CaseError, match="returned str"):
        text([], [], None)


def test_a_metric_that_raises_for_other_shapes_or_nan_has_its_worst_value(ill, tmp_path):
    (tmp_path / "score.py").write_text(
        "def score(reference, candidate, labels):\n"
        "    assert not any((c['y'] != c['y']).any() for c in candidate)\n"
        "    return -max(abs(r['y'] - c['y']).max() for r, c in zip(reference, candidate))\n"
    )
    metric = load(ill, Criterion(metric=f"{tmp_path}/score.py:score")).metric
    assert metric is not None
    reference = [{"y": np.zeros(3)}]
    assert metric(reference, [{"y": np.ones(3)}], None) == -1
    assert metric(reference, [{"y": np.ones(2)}], None) == -np.inf
    assert metric(reference, [{"y": np.full(3, np.nan)}], None) == -np.inf
    with pytest.raises(CaseError, match="KeyError"):
        metric([{"z": np.zeros(3)}], [{"z": np.zeros(3)}], None)


def test_an_unknown_metric_is_refused_with_those_there_are(ill):
    with pytest.raises(UsageError, match="accuracy") as error:
        load(ill, Criterion(metric="accuracy"))
    assert "top1" in error.value.hint


def test_a_model_comes_from_a_file_or_from_memory(ill, tmp_path):
    onnx.save(ill.proto, tmp_path / "model.onnx")
    stored, made = load_model(tmp_path / "model.onnx"), load_model(ill.proto)
    assert load_model(str(tmp_path / "model.onnx")).sha256 == stored.sha256
    assert stored.path == tmp_path / "model.onnx"
    assert made.path is None
    assert [n.name for n in stored.nodes()] == [n.name for n in made.nodes()]


def test_an_input_that_is_no_tensor_is_refused():
    x = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    node = helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    graph = helper.make_graph([node], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.raises(CaseError, match="'x' of the model is not a tensor"):
        load_case(proto, Data({"x": np.zeros((2, 3), np.float32)}), Criterion())


@pytest.mark.parametrize("inputs", [{}, [{}], "random"])
def test_a_model_without_inputs_is_refused(inputs):
    sketch = Sketch()
    y = sketch.op("Relu", sketch.constant(np.ones(3)), name="relu")
    with pytest.raises(CaseError, match="The model has no inputs"):
        load_case(sketch.proto(y), Data(inputs), Criterion())


@pytest.mark.parametrize("inputs", [{}, [], [{}]])
def test_samples_without_arrays_are_refused(ill, inputs):
    with pytest.raises(CaseError) as error:
        load(ill, inputs=inputs)
    assert error.value.hint


def test_named_and_unnamed_axes_are_dynamic():
    sketch = Sketch()
    y = sketch.op("Relu", sketch.input("x", ["batch", None, 4]), name="relu")
    ill = models.Ill(sketch.proto(y), {"x": models.signals(3, 4, seed=0)})
    assert len(load(ill, split=False).calibration) == 8


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_an_fp16_model_is_widened_and_fed_in_fp32(dtype):
    sketch = Sketch()
    x = sketch.input("x", [1, 4], TensorProto.FLOAT16)
    proto = sketch.proto(sketch.op("Relu", x, name="relu"))
    values = (np.arange(16) / 3).reshape(4, 1, 4).astype(dtype)
    case = load_case(proto, Data({"x": values}), Criterion())
    assert case.stored.formats == ("FP16",)
    assert case.stored.io.keys() == {"x", "relu_out"}
    assert case.calibration[0]["x"].dtype == np.float32
    np.testing.assert_array_equal(case.calibration[0]["x"], values[0])
    assert notes_of(case)[0].startswith("the model stores FP16")
    assert load_model(proto).graph.inputs[0].dtype == ir.DataType.FLOAT16


def test_what_a_search_can_start_from(ill, tmp_path):
    onnx.save(ill.proto, tmp_path / "mixed.onnx")
    write_run(tmp_path, runs.run())
    assert isinstance(load_start(tmp_path / "mixed.onnx"), Network)
    assert isinstance(load_start(tmp_path), Run)
    assert isinstance(load_start(tmp_path / "run.json"), Run)
    with pytest.raises(CaseError, match="Found no model or run at"):
        load_start(tmp_path / "absent.json")
    (tmp_path / "text.json").write_text("no record")
    with pytest.raises(RecordMismatch):
        load_start(tmp_path / "text.json")


def test_labels_that_are_text_are_refused_before_anything_runs(ill, tmp_path):
    (tmp_path / "labels.json").write_text('[0, 1, "cat", 3, 4, 5, 6, 7]')
    with pytest.raises(CaseError, match="takes numbers as labels, but label 2 is 'cat'"):
        load(ill, Criterion(metric="top1"), labels=tmp_path / "labels.json")
    assert load(ill, labels=tmp_path / "labels.json").heldout.labels == (3, 7)
