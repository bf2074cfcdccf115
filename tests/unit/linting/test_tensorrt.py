from tests.unit.linting.said import said


def test_what_is_said(tmp_path):
    assert said("late_opset", tmp_path) == "opset 18; TensorRT 8.6 is known to read up to 17"
    assert said("native_layer_norm", tmp_path) == "TensorRT 8.5 has no LayerNormalization; 8.6 has"
