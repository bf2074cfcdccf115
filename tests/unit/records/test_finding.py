import pytest
from pydantic import ValidationError

from halfwise.records import SEVERITIES, Finding


def test_the_worst_severity_is_first():
    assert SEVERITIES == ("error", "warning", "info")


def test_a_finding_survives_json():
    found = Finding(rule="r", severity="info", message="m", fix="f", source="https://example.org")
    assert Finding.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValidationError):
        Finding.model_validate(found.model_dump() | {"severity": "note"})
