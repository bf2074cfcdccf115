from pathlib import Path

import pytest

from halfwise.errors import RecordMismatch
from halfwise.page.document import write_page
from halfwise.store import EVIDENCE_FILE, OBSERVATIONS_FILE, write_run
from tests.unit.reporting.runs import run as made


def test_that_a_run_without_observations_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, made())
    assert "PASSED" in write_page(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [OBSERVATIONS_FILE, EVIDENCE_FILE])
def test_that_a_damaged_file_is_told(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, made())
    (tmp_path / name).write_text("{")
    with pytest.raises(RecordMismatch, match=name):
        write_page(tmp_path)
