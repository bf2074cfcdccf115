from pathlib import Path

import pytest

from halfwise.errors import RecordMismatch
from halfwise.page.data import stored
from halfwise.store import EVIDENCE_FILE, OBSERVATIONS_FILE, write_run
from tests.unit.reporting.runs import run as made


def test_that_a_run_without_observations_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, made())
    found = stored(tmp_path)
    assert found.run == made()
    assert found.observations is None
    assert found.screen.title.startswith("PASSED")


@pytest.mark.parametrize("name", [OBSERVATIONS_FILE, EVIDENCE_FILE])
def test_that_a_damaged_file_is_told(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, made())
    (tmp_path / name).write_text("{")
    with pytest.raises(RecordMismatch, match=name):
        stored(tmp_path)
