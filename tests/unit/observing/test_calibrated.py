"""A cache's ranges against what tensors reach; end to end from the library on."""

import numpy as np
import pytest

from halfwise import api
from halfwise.errors import CaseError
from halfwise.reporting.parts import Lines, Table
from halfwise.reporting.tensors import observed
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tensorrt.caches import written

DATA = np.append(np.linspace(-1, 1, 1999), 1.0).reshape(2, 1, 1000)


def proto():
    s = Sketch(17)
    x = s.input("x", [1, 1000])
    y = s.op("Mul", x, 4.0, name="y")
    return s.proto(s.op("Add", y, s.op("Mul", x, 0.0, name="none"), name="z"))


def checked(tmp_path, scales):
    path = written(tmp_path / "c", scales)
    return api.observe(proto(), {"x": f32(DATA)}, cache=path, allow_random=True)


def test_every_fault_and_none(tmp_path):
    made_up = "(Unnamed Layer* 64) [Shuffle]_output"
    scales = {
        "x": 0.1 / 127,
        "y_out": 4 / 127,
        "z_out": 90 / 127,
        "none_out": 0,
        made_up: 1,
        "q": 1,
    }
    seen = checked(tmp_path, scales)
    check = seen.calibration
    assert check is not None
    found = {str(one.tensor): one for one in check.tensors}
    assert {name: one.fault for name, one in found.items()} == {
        "x": "saturated", "y_out": None, "z_out": "wide", "none_out": None,
    }  # fmt: skip
    assert found["x"].beyond == pytest.approx(0.9, abs=0.01)
    assert found["z_out"].reach == pytest.approx(4)
    assert (check.unknown, check.uncalibrated) == (("q",), ())
    *_, lines, table = observed(seen, 10_000).parts
    assert isinstance(lines, Lines)
    assert "of 4 ranges, 2 fit 2 samples, 1 × saturates, 1 × is too wide." in lines.lines[0]
    assert lines.lines[1] == "Not in the model: q."
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["x", "z_out"]


def test_what_has_no_scale_and_values(tmp_path):
    check = checked(tmp_path, {"x": 0, "y_out": np.inf}).calibration
    assert check is not None
    assert [one.fault for one in check.tensors] == ["unset", "unset"]
    assert check.uncalibrated == ("none_out", "z_out")


def test_a_cache_of_another_model(tmp_path):
    with pytest.raises(CaseError, match="a cache for another model: 2 of its 3 tensors") as raised:
        checked(tmp_path, {"x": 1, "conv1": 1, "conv2": 1})
    assert "exactly this ONNX file" in raised.value.hint
