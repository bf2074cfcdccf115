from tests.unit.linting.said import said


def test_casts_and_types(tmp_path):
    assert said("cast_to_half_and_back", tmp_path) == (
        "x goes from FLOAT to FLOAT16 and then to FLOAT: 11 bits are left"
    )
    assert said("double", tmp_path) == "it writes double_out in FP64, which becomes FP32"
