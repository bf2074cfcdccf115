from tests.unit.linting.said import said


def test_integers(tmp_path):
    assert said("wide_integer", tmp_path) == (
        "1 of the 1 values of constant_0 is beyond 32 bits, such as 1099511627776"
    )


def test_indices(tmp_path):
    assert said("index", tmp_path) == (
        "floor_out, a FLOAT, becomes an index or size of Gather gather: in FP16 it is wrong beyond "
        "2048"
    )
