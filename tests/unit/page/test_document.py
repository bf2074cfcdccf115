from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from halfwise.page import document as module
from halfwise.page.document import coded, document, write_page
from halfwise.page.sections import SECTIONS, Section, Stored
from halfwise.records import Step, replace, said
from halfwise.store import write_run
from tests.unit.page.reading import Read
from tests.unit.reporting.runs import run as made

STATIC = Path(module.__file__).parent / "static"
NASTY = "</script><script>alert(1)</script><!--\"'{{7*7}}\u202e" + "x" * 300


def stored(**changed) -> Stored:
    run = replace(made(), **changed)
    return Stored(run)


def policy(read: Read) -> str:
    (found,) = (a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a)
    assert found
    return found


def test_that_the_page_runs_its_own_scripts_alone_and_requests_nothing() -> None:
    read = Read(document(stored()))
    allowed = policy(read)
    assert allowed.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in allowed
    kinds = [a.get("type") for tag, a in read.tags if tag == "script"]
    runs = [t for t, kind in zip(read.texts["script"], kinds, strict=True) if kind is None]
    for text in (*runs, *read.texts["style"]):
        assert b64encode(sha256(text.encode()).digest()).decode() in allowed
    assert not any("src" in a or (a.get("href") or "#")[0] not in "#d" for _, a in read.tags)
    assert not any(name.startswith("on") or name == "style" for _, a in read.tags for name in a)


def test_that_hostile_words_stay_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "SECTIONS", (*SECTIONS, lambda _: Section("nasty", NASTY, {NASTY: NASTY}))
    )
    nasty = replace(made().provenance, model=NASTY)
    steps = (*said(NASTY), Step(kind="fix", command=("halfwise", "fix", NASTY)))
    run = stored(provenance=nasty, next_step=steps)
    read = Read(document(run))
    assert read.data("nasty") == {NASTY: NASTY}
    assert NASTY in read.texts["h2"]
    monkeypatch.undo()
    usual = Read(document(stored())).texts["script"]
    assert len([text for text in read.texts["script"] if text not in usual]) == 1
    assert "49" not in "".join(read.texts["p"])


def test_that_no_file_of_ours_can_end_its_tag() -> None:
    for path in STATIC.rglob("*.[jc]s*"):
        text = path.read_text(encoding="utf-8").lower()
        assert not any(end in text for end in ("</script", "</style", "<!--")), path
        if path.parent == STATIC:
            assert len(text.splitlines()) <= 350, path
            assert not any(way in text for way in ("innerhtml", "outerhtml", "eval(")), path
            assert path.suffix != ".js" or text.startswith('"use strict"'), path


def test_that_libraries_come_with_their_licence_where_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = Section("graph", "The graph", libraries=("dagre",))
    monkeypatch.setattr(module, "SECTIONS", ())
    assert "MIT" not in document(stored())
    monkeypatch.setattr(module, "SECTIONS", (lambda _: drawn,))
    page = document(stored())
    assert page.count("Permission is hereby granted, free of charge") == 1
    assert len(page) < 300_000


def test_that_a_path_without_utf_8_makes_a_page(tmp_path: Path) -> None:
    odd = replace(made().provenance, model="a\udc80.onnx")
    run = replace(made(), provenance=odd)
    write_run(tmp_path, made())
    assert "a\udc80" in document(Stored(run))
    assert write_page(tmp_path).read_text(encoding="utf-8").endswith("</html>")


def test_that_libraries_are_as_they_were_fetched() -> None:
    vendor = STATIC / "vendor"
    sums = dict(line.split()[::-1] for line in (vendor / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {path.name for path in vendor.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert sha256((vendor / name).read_bytes()).hexdigest() == digest


def test_what_stands_between_backticks_is_code():
    assert coded("`halfwise fix` <b> ` &") == "<code>halfwise fix</code> &lt;b&gt; ` &amp;"
