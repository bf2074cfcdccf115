"""The page of failure classes lists the models that the tests run."""

from tools import failure_classes


def test_the_page_lists_every_model() -> None:
    text = failure_classes.PAGE.read_text(encoding="utf-8")
    assert text == failure_classes.with_listing(text), "run python tools/failure_classes.py"
