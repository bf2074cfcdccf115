from halfwise.page.document import document
from tests.unit.page.reading import Read
from tests.unit.page.test_document import stored


def test_that_every_part_of_the_report_is_on_the_page() -> None:
    shown = stored()
    read = Read(document(shown))
    for part in shown.report.parts:
        assert part.title in read.texts["h3"]
    tables = [a["data-name"] for t, a in read.tags if t == "table"]
    assert "Error against FP32" in tables
