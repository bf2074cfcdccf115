from halfwise.page.sections import facts
from halfwise.records import replace
from tests.unit.reporting.runs import run as made


def test_that_options_and_versions_are_told() -> None:
    found = replace(made().provenance, options={"rel_max": "0.1"}, versions={"onnx": "1"})
    told = facts(replace(made(), provenance=found))
    assert told["options"] == ["rel_max = 0.1"]
    assert told["versions"] == ["onnx 1"]
