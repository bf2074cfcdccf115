import pytest

from halfwise import api
from halfwise.page.document import write_page
from halfwise.page.finish import finish
from halfwise.progress import Silent
from halfwise.store import read_evidence, read_run
from tests.models import small
from tests.unit.page.test_evidence import case_of, network
from tests.unit.reporting.runs import run


class Listener(Silent):
    """Remembers the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_that_the_page_of_a_run_is_that_of_its_folder(tmp_path) -> None:
    ill, folder = small(), tmp_path / "run"
    made = api.fix(ill.proto, dict(ill.inputs), out=folder).run
    assert read_run(folder) == made
    assert read_evidence(folder) is not None
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert write_page(folder).read_bytes() == page


@pytest.mark.parametrize("error", [KeyError("\x1bwhy"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["report.html", "evidence.json"])
def test_that_a_run_outlives_what_shows_it(
    tmp_path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    makers = {
        "report.html": "halfwise.page.document.write_stored",
        "evidence.json": "halfwise.page.finish.write_evidence",
    }

    def broken(*_) -> None:
        (tmp_path / name).write_text("half of it")
        raise error

    monkeypatch.setattr(makers[name], broken)
    heard = Listener()
    finish(tmp_path, run(), case_of(network()), heard)
    assert read_run(tmp_path) == run()
    assert {p.name for p in tmp_path.iterdir()} == {"run.json", *makers} - {name}
    (note,) = heard.notes
    assert f"{name} could not be made ({type(error).__name__}" in note
    assert "\x1b" not in note
