from tests.unit.linting.said import said


def test_what_is_frozen(tmp_path):
    assert said("reshape", tmp_path) == (
        "its first axis is dynamic, but the constant constant_0 = [1, -1] fixes it"
    )
    assert said("initial_state", tmp_path) == (
        "its batch axis is dynamic, but its initial state constant_3 is a constant for a fixed "
        "batch size"
    )
    assert said("length", tmp_path) == (
        "axis 1 of x is dynamic, but the constant constant_0 = [1, 10, 2, 4] fixes it"
    )


def test_an_output_that_does_not_vary(tmp_path):
    assert said("fixed_output", tmp_path) == (
        "axis 0 of the output sum_out is declared n, as in an input, but is always 1"
    )
