"""One self-contained HTML file of all sections."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from halfwise.errors import UsageError
from halfwise.page.sections import SECTIONS, Stored, script_json
from halfwise.scratch import scratch
from halfwise.store import (
    PAGE_FILE,
    folder_of,
    read_evidence,
    read_observations,
    refuse_existing_file,
    refuse_irregular,
    report,
)
from halfwise.wording import capital, clean

_HERE = Path(__file__).parent
_CORE = ("core", "table", "theme")
"""Scripts of every page, in order of dependency."""
_STYLES = ("palette", "page", "parts", "print")


def write_page(folder: Path, out: Path | None = None, *, trt_worker: str | None = None) -> Path:
    """Make the page of a run folder from its contents, and return its path.

    Args:
        folder: The run folder, or its `run.json`.
        out: The file to write, which must not exist; None for `report.html` in the folder.
        trt_worker: One of the run's devices, shown as if it were the only one; None for all.

    Raises:
        RecordMismatch: no run, or one that cannot be read.
        UsageError: `out` exists or cannot be written, or the run has no device of that name.
    """
    if out is not None:
        refuse_existing_file(out)
    page = folder_of(folder) / PAGE_FILE if out is None else out
    run = report(folder, trt_worker=trt_worker)
    write_stored(Stored(run, read_observations(folder), read_evidence(folder)), page)
    return page


def write_stored(run: Stored, page: Path) -> None:
    """Make the page of a run that has already been read.

    Raises:
        UsageError: the file cannot be written.
    """
    refuse_irregular(page, "The page")
    text = document(run)
    try:
        with scratch(page.parent, ".halfwise.") as partial:
            # A path that is not UTF-8 has surrogates, which HTML cannot hold.
            (partial / "page").write_text(text, encoding="utf-8", errors="replace")
            (partial / "page").replace(page)
    except OSError as error:
        raise UsageError(
            f"The page {page} cannot be written: {error.strerror}.", "Name another file with -o."
        ) from error


def document(stored: Stored) -> str:
    """Return the page of a stored run."""
    sections = [s for s in (make(stored) for make in SECTIONS) if s is not None]
    libraries = sorted(set(chain.from_iterable(s.libraries for s in sections)), reverse=True)
    names = dict.fromkeys(chain.from_iterable((*s.scripts, s.id) for s in sections))
    scripts = [_vendored(name, "js") for name in libraries]
    scripts += [_script(name) for name in (*_CORE, *names)]
    styles = [_vendored(name, "css") for name in libraries]
    styles += [_text(f"{name}.css") for name in (*_STYLES, *names)]
    scripts, styles = list(filter(None, scripts)), list(filter(None, styles))
    return (
        _templates()
        .get_template("report.html")
        .render(
            stored=stored,
            sections=sections,
            data={s.id: script_json(s.data) for s in sections if s.data is not None},
            scripts=scripts,
            styles=styles,
            policy=_policy(scripts, styles),
        )
    )


def _policy(scripts: list[Markup], styles: list[Markup]) -> str:
    """Return the page's policy: it may run its own scripts, by hash, and request nothing."""
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: list[Markup]) -> str:
    digests = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _script(name: str) -> Markup:
    """Return a script in its own scope; "" if there is none."""
    text = _text(f"{name}.js")
    return Markup("(() => {{\n{}}})();\n").format(text) if text else text


def _vendored(name: str, kind: str) -> Markup:
    """Return a library's file preceded by its licence; "" if it has none of that kind."""
    text, licence = _text(f"vendor/{name}.{kind}"), _text(f"vendor/{name}.LICENSE")
    return Markup("/*\n{}*/\n{}").format(licence, text) if text else text


@cache
def _text(name: str) -> Markup:
    """Return one of our own files unchanged; "" if there is none."""
    path = _HERE / "static" / name
    return Markup(path.read_text(encoding="utf-8")) if path.is_file() else Markup()  # noqa: S704


def coded(text: str) -> Markup:
    """Return text as escaped HTML, with backticked parts as code."""
    code = Markup("<code>{}</code>")
    pieces = re.split(r"`([^`]+)`", text)
    return Markup().join(code.format(one) if i % 2 else _whole(one) for i, one in enumerate(pieces))


def _whole(text: str) -> Markup:
    """Return text as escaped HTML whose options, such as --rel-max, do not break at hyphens."""
    pieces = re.split(r"(?<![\w-])(--[a-z][a-z0-9-]*)", text)
    return Markup().join(_WORD.format(s) if i % 2 else escape(s) for i, s in enumerate(pieces))


_WORD = Markup('<span class="word">{}</span>')


def words(command: str) -> Markup:
    """Return a command as escaped HTML whose words break at spaces only, not after hyphens."""
    return Markup(" ").join(_WORD.format(word) for word in command.split(" "))


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["capital"] = capital
    templates.filters["clean"] = clean
    templates.filters["coded"] = coded
    templates.filters["words"] = words
    return templates
