from halfwise.page import document as module
from halfwise.page.document import document
from halfwise.page.sections import Section
from tests.unit.page.test_document import stored


def test_that_a_section_without_files_has_a_body_alone(monkeypatch) -> None:
    monkeypatch.setattr(
        module, "SECTIONS", (lambda _: Section("nothing", "Nothing"), lambda _: None)
    )
    page = document(stored())
    assert '<section id="nothing"' in page
    assert 'id="data-nothing"' not in page
