from tests.unit.linting.said import said


def test_what_an_eps_becomes(tmp_path):
    assert said("logarithm", tmp_path) == (
        "the eps 1e-10 before Log becomes zero in FP16 by plain conversion (6e-08 in what halfwise "
        "fix stores)"
    )
    assert said("clipped_divisor", tmp_path).startswith(
        "the eps 1e-12 before Div becomes zero in FP16 by plain conversion"
    )


def test_how_many_bits_are_left(tmp_path):
    expected = "the eps 1e-05 before Sqrt is subnormal in FP16: 8 of 11 bits"
    assert said("root", tmp_path) == expected
