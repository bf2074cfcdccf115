from tests.unit.linting.said import said


def test_names(tmp_path):
    assert said("unnamed", tmp_path) == "it has no name; TensorRT calls it node_of_second_out"
    assert said("duplicate", tmp_path).startswith("2 nodes are called first;")


def test_what_nobody_reads(tmp_path):
    assert said("spare_node", tmp_path) == "nothing reads spare_out"
    assert said("spare_output", tmp_path) == "nothing reads its optional output places"
    assert said("spare_constant", tmp_path) == "nothing reads the constant spare (4)"
    assert said("spare_input", tmp_path) == "nothing reads the input z"
