"""What the framework computed, from other inputs and from none: before the export is blamed."""

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from tests import pictures

PIXELS = pictures.pictures() / 255


@pytest.fixture
def diagnosed(tmp_path, call):
    """Diagnose a network against its outputs on other pictures; optionally altered."""
    onnx.save(pictures.sketch().proto(pictures.OUTPUT), tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", images=PIXELS.astype(np.float32))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")

    def diagnosed(theirs, factor=1.0):
        outputs = [session.run(None, {"images": pictures.one(x)})[0] for x in theirs]
        np.savez(tmp_path / "expected.npz", **{pictures.OUTPUT: factor * np.stack(outputs)})
        return call(
            *("diagnose", "model.onnx", "--inputs", "inputs.npz"),
            *("--expected", "expected.npz", "-o", "run"),
        )

    return diagnosed


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (PIXELS[:, ::-1], "one is RGB, the other BGR"),
        (255 * PIXELS, "have the scale 1, A's 0.003"),
        (pictures.imagenet(255 * PIXELS), "have the mean (0.485, 0.456"),
    ],
    ids=["BGR", "255", "ImageNet"],
)
def test_other_inputs_are_named_and_the_export_is_not_blamed(diagnosed, theirs, told):
    ended = diagnosed(theirs)
    assert ended.code == 10
    (rung,) = ended.record["diagnosis"]
    assert (rung["name"], rung["passed"], rung["nodes"]) == ("harness", False, [])
    assert told in rung["cause"]
    assert "outputs on 5 samples" in rung["cause"]
    assert (ended.folder / "framework_inputs.py").is_file()
    assert "framework_inputs.py" in ended.out


@pytest.mark.parametrize(
    ("theirs", "factor"), [(PIXELS**1.1, 1.0), (PIXELS, 1.1)], ids=["gamma", "another function"]
)
def test_other_faults_go_on_to_the_export_and_say_what_was_tried(diagnosed, theirs, factor):
    ended = diagnosed(theirs, factor)
    assert ended.code == 10
    inputs, export = ended.record["diagnosis"]
    assert (inputs["passed"], export["name"], export["passed"]) == (True, "export", False)
    assert "input changes (channels, " in " ".join(ended.out.split())
    assert not (ended.folder / "framework_inputs.py").exists()


PIPELINES = """
import numpy as np
from PIL import Image

def train(path):
    return np.asarray(Image.open(path), np.float32).transpose(2, 0, 1) / 255

def deploy(path):
    return train(path)[::-1]
"""


def test_two_functions_on_the_same_files_are_compared(tmp_path, call):
    onnx.save(pictures.sketch().proto(pictures.OUTPUT), tmp_path / "model.onnx")
    (tmp_path / "prep.py").write_text(PIPELINES)
    (tmp_path / "raw").mkdir()
    for i, picture in enumerate(pictures.pictures()):
        pixels = picture.round().astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels).save(tmp_path / "raw" / f"{i}.png")
    words = ("--preprocess", "prep.py:train", "--preprocess-b", "prep.py:deploy", "-o", "run")
    ended = call("diagnose", "model.onnx", "--inputs", "raw", *words)
    assert ended.code == 10
    (rung,) = ended.record["diagnosis"]
    assert (rung["name"], rung["passed"]) == ("harness", False)
    assert "one is RGB, the other BGR" in rung["cause"]
    assert (ended.folder / "a_to_b.py").is_file()
