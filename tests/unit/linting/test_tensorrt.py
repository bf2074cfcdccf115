import pytest

from tests.faults import linted
from tests.faults.tensorrt import cast
from tests.unit.linting.said import said


def test_what_is_said(tmp_path):
    assert said("late_opset", tmp_path) == "opset 18; TensorRT 8.6 reads up to 17"
    assert said("native_layer_norm", tmp_path) == "TensorRT 8.5 has no LayerNormalization; 8.6 has"
    assert said("cast", tmp_path) == (
        "layers of a fixed type: 1 Cast; a constraint on a Cast ends the build in castLayer.cpp"
    )


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("8.5", "layers of a fixed type: 1 Cast"),
        ("8.6", "layers of a fixed type: 1 Cast; a constraint on a Cast ends the build"),
        ("10.16", "layers of a fixed type: 1 Cast; a constraint on a Cast ends the build"),
        ("11.0", None),
        (None, None),
    ],
)
def test_constraints_are_told_of_where_a_version_has_them(version, message, tmp_path):
    found = linted(cast(True), tmp_path, version).findings
    said = [f.message for f in found if f.rule == "unconstrainable"]
    assert [s.partition(" in castLayer")[0] for s in said] == ([] if message is None else [message])
