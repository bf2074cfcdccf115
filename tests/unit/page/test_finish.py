import pytest

from halfwise import api
from halfwise.page import finish as module
from halfwise.page import write_page
from halfwise.progress import Silent
from halfwise.store import read_evidence, read_run
from tests.models import small


class Listener(Silent):
    """Remembers the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_that_the_page_of_a_run_is_that_of_its_folder(tmp_path) -> None:
    ill, folder = small(), tmp_path / "run"
    run = api.fix(ill.proto, dict(ill.inputs), out=folder).run
    assert read_run(folder) == run
    assert read_evidence(folder) is not None
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert write_page(folder).read_bytes() == page


def test_that_a_run_outlives_its_page(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_) -> None:
        raise KeyError("\x1bwhy")

    monkeypatch.setattr(module, "write_stored", broken)
    ill, folder, heard = small(), tmp_path / "run", Listener()
    run = api.fix(ill.proto, dict(ill.inputs), out=folder, watcher=heard).run
    assert read_run(folder) == run
    assert not (folder / "report.html").exists()
    assert [n for n in heard.notes if "report.html could not be made" in n and "KeyError" in n]
    assert "\x1b" not in "".join(heard.notes)
