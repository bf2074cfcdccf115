"""Models and inputs in the forms that users have them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from halfwise import api
from halfwise.errors import CaseError
from tests import models
from tests.end_to_end.conftest import fixing
from tests.end_to_end.soundness import assert_sound
from tests.unit.graph.sketch import Sketch, f32


def test_images_go_through_the_users_function(call, tmp_path):
    ill = models.conv_chain()
    onnx.save(ill.proto, tmp_path / "model.onnx")
    (tmp_path / "images").mkdir()
    ramp = np.add.outer(np.arange(8), np.arange(8))
    for i in range(8):
        Image.fromarray((ramp * (i + 9)).astype(np.uint8)).save(tmp_path / f"images/{i}.png")
    (tmp_path / "prepare.py").write_text(
        "import numpy as np\n"
        "from PIL import Image\n\n\n"
        "def prepare(path):\n"
        "    image = np.asarray(Image.open(path), np.float32) / 255\n"
        "    return np.stack([image, 1 - image])[None]\n"
    )
    options = ("--inputs", "images", "--preprocess", "prepare.py:prepare")
    ended = call("fix", "model.onnx", *options, "-o", "run")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert ended.record["verdict"]["samples"] == ["3.png", "7.png"]


@pytest.mark.parametrize(("more", "searched"), [((), 24), (("--failing", "10%"), 20)])
def test_of_many_samples_few_are_searched_on(call, tmp_path, more, searched):
    onnx.save(models.conv_chain().proto, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=models.signals(1, 2, 8, 8, seed=4, count=80))
    ended = call("fix", "model.onnx", "--inputs", "inputs.npz", "-o", "run", *more)
    assert ended.code == 0, ended.err
    assert len(ended.record["search"]["calibration"]) == searched
    assert len(ended.record["verdict"]["samples"]) == 80 - searched


def test_texts_and_images_are_of_different_numbers(call, tmp_path):
    sketch = Sketch()
    tables = [f32(np.random.default_rng(i).normal(size=(8, 4))) for i in (0, 1)]
    text, image = (sketch.input(n, [f"{n}s", 8]) for n in ("text", "image"))
    one, other = map(sketch.op, ("MatMul", "MatMul"), (text, image), tables)
    turned = sketch.op("Transpose", other, perm=[1, 0])
    onnx.save(sketch.proto(sketch.op("MatMul", one, turned)), tmp_path / "model.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        at = {
            "text": models.signals(1 + i % 3, 8, seed=i)[0],
            "image": models.signals(1, 8, seed=9)[i],
        }
        np.savez(tmp_path / "data" / f"{i}.npz", **at)
    ended = call("fix", "model.onnx", "--inputs", "data", "-o", "run", "--allow", "unjudged")
    assert ended.code == 0, ended.err
    assert ended.record["verdict"]["samples"] == ["3.npz", "7.npz"]
    again = call("verify", "model.onnx", ended.model, "--inputs", "data", "--allow", "unjudged")
    assert again.code == 0, again.err


def test_pairs_of_images_from_two_folders(call, tmp_path):
    sketch = Sketch()
    left, right = (sketch.input(name, [1, 8, 8]) for name in ("left", "right"))
    apart = sketch.op("Sub", left, right, name="apart")
    y = sketch.op("Sqrt", sketch.op("Mul", apart, apart, name="square"), name="root")
    onnx.save(sketch.proto(y), tmp_path / "model.onnx")
    ramp = np.add.outer(np.arange(8), np.arange(8))
    for folder, name, step in (("a", "a", 9), ("b", "a", 3), ("c", "c", 7), ("d", "c", 2)):
        (tmp_path / folder).mkdir()
        for i in range(4):
            image = Image.fromarray((ramp * (step + i)).astype(np.uint8))
            image.save(tmp_path / folder / f"{name}_{i}.png")
    (tmp_path / "prepare.py").write_text(
        "import numpy as np\n"
        "from PIL import Image\n\n\n"
        "def read(path):\n"
        "    return np.asarray(Image.open(path), np.float32)[None] * 10\n\n\n"
        "def prepare(paths):\n"
        "    return {name: read(path) for name, path in paths.items()}\n"
    )
    prepared = ("--preprocess", "prepare.py:prepare")
    options = ("--inputs", "left=a,right=b", "--heldout", "right=d,left=c", *prepared)
    ended = call("fix", "model.onnx", *options, "-o", "run")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert ended.record["verdict"]["samples"] == [f"c_{i}.png" for i in range(4)]
    refused = call("observe", "model.onnx", "--inputs", "left=a,right=a", *prepared)
    assert refused.code == 3
    assert "both read from a" in refused.err


def test_shapes_may_differ_between_samples(call, tmp_path):
    sketch = Sketch()
    x = sketch.input("x", [1, "length", 4])
    y = sketch.op("Sqrt", sketch.op("Mul", x, x, name="square"), name="root")
    onnx.save(sketch.proto(y), tmp_path / "model.onnx")
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", f32(np.linspace(-400, 400, 4 * (i + 2))).reshape(1, -1, 4))
    (tmp_path / "data").mkdir()
    for i in range(4):
        (tmp_path / f"{i}.npy").rename(tmp_path / "data" / f"{i}.npy")
    ended = call("fix", "model.onnx", "--inputs", "data", "-o", "run")
    assert ended.code == 0, ended.err
    assert ended.kept == set()


def test_outputs_whose_shape_depends_on_values(fix, call):
    """A kept node that no guard explains makes halfwise follow the error, shapes or not."""
    sketch = Sketch()
    x = sketch.input("x", [1, 32])
    scaled = sketch.op("MatMul", x, models.weights(32, 32, seed=3, scale=0.5), name="matmul")
    positive = sketch.op("Greater", scaled, f32(0.0), name="positive")
    flat = sketch.op("Reshape", positive, [-1], name="flat")
    y = sketch.op("Compress", sketch.op("Reshape", scaled, [-1], name="row"), flat, name="pick")
    scale = sketch.op("Mul", y, f32(1.5), name="scale")
    ill = models.Ill(sketch.proto(scale), {"x": models.signals(1, 32, seed=4)})
    ended = fix(ill, "--rel-max", "1e-7")
    assert ended.code in (0, 10), ended.err
    assert ended.record["growth"]
    assert call("report", "run").code == ended.code


def test_batches_of_samples(call, tmp_path):
    """A dynamic batch axis: an array of the input's own rank is as many samples."""
    sketch = Sketch()
    x = sketch.input("x", ["batch", 16])
    y = sketch.op("Sqrt", sketch.op("Mul", x, x, name="square"), name="root")
    ill = models.Ill(sketch.proto(y), {"x": models.signals(16, seed=5, peak=500)})
    onnx.save(ill.proto, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", ill.inputs["x"])
    ended = call("fix", "model.onnx", "--inputs", "x.npy", "-o", "run")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert len(ended.record["verdict"]["samples"]) == 2


def test_weights_beside_the_model(saved, call, tmp_path):
    ill = models.huge_weights()
    model, inputs = saved(ill)
    onnx.save(
        ill.proto, model, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert (tmp_path / "weights.bin").is_file()
    ended = call(*fixing(model, inputs))
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert call("verify", model, ended.model, "--inputs", inputs).code == 0
    ended = call(*fixing(model, inputs)[:-1], "kept", "--no-repair", folder="kept")
    assert ended.code == 0, ended.err
    assert_sound(ended, ill, call)


def test_held_out_samples_that_were_searched_on_are_no_verdict(files, call):
    ended = call(*fixing(*files, "--heldout", files[1]))
    assert ended.code == 10, ended.err
    assert not ended.record["verdict"]["unseen"]
    (warning,) = ended.record["warnings"]
    assert "8 of 8 held-out samples" in warning


def test_random_held_out_samples_are_no_verdict(files, call):
    ended = call(*fixing(*files, "--heldout", "random"))
    assert ended.code == 10, ended.err
    assert any(f["kind"] == "not-real" for f in ended.record["verdict"]["failures"])


@pytest.mark.parametrize(
    ("model", "data", "hint"),
    [
        ([1, 3, 8, 9], (1, 8, 9, 3), "np.moveaxis(x, -1, -3)"),
        ([1, 8, 9, 3], (1, 3, 8, 9), "np.moveaxis(x, -3, -1)"),
        ([1, 8, 9, 3], (1, 8, 7, 3), "Resize or crop"),
    ],
)
def test_axes_in_another_order_are_named(refused, tmp_path, model, data, hint):
    s = Sketch()
    onnx.save(s.proto(s.op("Relu", s.input("x", model))), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones(data, np.float32))
    for command in (("observe",), ("fix", "-o", "run")):
        name, *options = command
        assert hint in refused(3, name, "model.onnx", "--inputs", "x.npy", *options)


def trees(extra: list[onnx.NodeProto]) -> onnx.ModelProto:
    ensemble = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["score"], name="trees", domain="ai.onnx.ml",
        n_targets=1, nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.5, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[1, 0, 0], target_treeids=[0, 0],
        target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[3.0, -2.0],
    )  # fmt: skip
    scale = helper.make_node("Sigmoid", ["score"], ["y"], name="squash")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    graph = helper.make_graph([ensemble, scale, *extra], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


DATA = np.random.default_rng(3).normal(size=(16, 1, 2)).astype(np.float32)
DATA[3, 0, 1] = DATA[6, 0, 1] = np.nan


def test_a_missing_value_of_trees_is_no_damage():
    made = api.fix(trees([]), {"x": DATA})
    assert made.run.verdict.passed
    assert made.run.plan is not None
    assert not made.run.plan.keep


def test_infinity_and_what_others_read_too_still_are():
    infinite = np.where(np.isnan(DATA), np.inf, DATA)
    with pytest.raises(CaseError, match="0 NaN and 1 inf"):
        api.fix(trees([]), {"x": infinite})
    other = helper.make_node("Neg", ["x"], ["z"], name="other")
    with pytest.raises(CaseError, match="1 NaN and 0 inf"):
        api.fix(trees([other]), {"x": DATA})
