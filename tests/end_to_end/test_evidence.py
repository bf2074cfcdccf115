"""What FP16 breaks is told with its line of code."""

import numpy as np
import pytest

from tests.end_to_end.conftest import fixing
from tests.models import Ill
from tests.unit.graph.sketch import Sketch
from tests.unit.page.reading import Read

STACK = 'File "/me/net.py", line 7, in forward\n    power = x * x'


@pytest.fixture
def ill():
    """Images whose squares leave the range, exported with stacks."""
    s = Sketch(17)
    large = s.op("Mul", s.input("images", ["n", 3, 24, 24]), 400.0, name="large")
    square = s.op("Mul", large, large, name="square")
    mean = s.op("ReduceMean", square, name="mean", axes=[2, 3], keepdims=0)
    proto = s.proto(s.op("Sqrt", mean, name="root"))
    for node in proto.graph.node:
        if node.name == "square":
            node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=STACK)
    rows, columns = np.mgrid[0:24, 0:24] / 24
    waves = [np.sin(rows * i + columns + k) for i in range(8) for k in range(3)]
    return Ill(proto, {"images": np.array(waves, np.float32).reshape(8, 3, 24, 24)})


@pytest.mark.parametrize("options", [("--only", "fp16"), ("--no-repair",)])
def test_a_cause_is_told_with_its_line(call, saved, ill, options):
    saved(ill)
    ended = call(*fixing("model.onnx", "model.npz", "--allow", "unjudged", *options))
    assert ended.code == 0
    read = Read((ended.folder / "report.html").read_text(encoding="utf-8"))
    data = read.data("causes")
    group = next(g for g in data["groups"] if g["found"][0]["node"] == "square")
    assert group["state"] == ("cause" if "--no-repair" in options else "mended")
    found = group["found"][0]
    frame = found["place"]
    assert (frame["file"], frame["line"], frame["text"]) == ("/me/net.py", 7, "power = x * x")
    assert found["histogram"]["overflow"] > 0.1
    again = call("report", "run", "--html", "-o", "again.html")
    assert again.code == 0
    made = Read((ended.folder.parent / "again.html").read_text(encoding="utf-8"))
    assert made.data("causes") == data
