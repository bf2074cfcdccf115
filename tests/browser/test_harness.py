"""What the browser's fixtures hold a report to, on pages with a fault each."""

from pathlib import Path

import pytest

from tests.browser.conftest import Look

FAULTS = {
    "logged": "<script>console.error('wrong')</script>",
    "requests": "<img src='http://127.0.0.1:9/x.png' alt=''>",
    "dialogs": "<script>alert(1)</script>",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_seen(kind: str, look: Look, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><title>x</title>{FAULTS[kind]}")
    seen = look(file)
    found = getattr(seen, kind)
    assert len(found) == 1
    with pytest.raises(AssertionError):
        seen.assert_quiet()
    for told in (seen.logged, seen.requests, seen.dialogs):
        told.clear()
