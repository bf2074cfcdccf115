from tests.faults import FAULTS, linted
from tests.unit.linting.said import said


def test_exporters(tmp_path):
    assert said("batch_statistics", tmp_path) == "BatchNormalization runs in training mode"


def test_a_broken_file_is_linted_all_the_same(tmp_path):
    fault = next(f for f in FAULTS if f.name == "missing_operand")
    report = linted(fault.make(True), tmp_path)
    assert [f.rule for f in report.findings] == ["checker"]
    assert report.skipped[0].startswith("could not infer types: ")
