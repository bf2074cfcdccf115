"""A real browser for reports: what it logs, and what it asks the network for, fails a test."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from halfwise.store import PAGE_FILE
from tests.browser import folders
from tests.conftest import quick_timing
from tests.fake_tensorrt.start import worker_command

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "chrome")
REQUIRED = "HALFWISE_TESTS_NEED_BROWSER"
"""Set where a machine without a browser is to fail, not to skip."""
UNFOLD = "() => document.querySelectorAll('.fold, .fault').forEach((each) => { each.open = true; })"
OWN = ("data:", "blob:", "about:")
"""Addresses of what is in the page already."""


@dataclass
class Seen:
    """A report in the browser.

    Attributes:
        page: Playwright's page.
        logged: What the console said that is an error or a warning, and exceptions.
        requests: Addresses that were asked for, the report's own aside.
        dialogs: Texts of dialogs, which nothing in a report opens.
    """

    page: Page
    logged: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def watch(self, own: str) -> None:
        """Note all that happens; the page itself is at `own`."""

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.logged.append(message.text)

        def asked(request: Request) -> None:
            if request.url != own and not request.url.startswith(OWN):
                self.requests.append(request.url)

        def opened(dialog: Any) -> None:
            self.dialogs.append(dialog.message)
            dialog.dismiss()

        self.page.on("console", said)
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", asked)
        self.page.on("dialog", opened)

    def assert_quiet(self) -> None:
        """Nothing failed, nothing was asked for, nothing ran that a name brought along."""
        assert (self.logged, self.requests, self.dialogs) == ([], [], [])


Look = Callable[..., Seen]
PageOf = Callable[[str], Path]


def executable() -> str | None:
    """Return the path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, COMMANDS)), None)


def arguments() -> list[str]:
    """Return what Chromium is started with: its sandbox refuses to work for root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Debian's Chromium; its profile is not among the files that a test may leave."""
    path = executable()
    if path is None:
        why = "There is no Chromium: tools/get-test-packages installs Debian's."
        pytest.fail(why) if os.environ.get(REQUIRED) else pytest.skip(why)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("chromium")))
        # The driver is started inside the test session: its folder is what TMPDIR is by then.
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=path, args=arguments())
            patch.undo()
            yield browser
            browser.close()


@pytest.fixture
def look(chromium: Browser) -> Iterator[Look]:
    """Open a report: `look(file, width=420, dark=True)`; at the end it must have been quiet.

    All sections are unfolded, unless `folded`.
    """
    opened = []

    def look(
        file: Path, *, width: int = 900, height: int = 900, dark: bool = False, folded: bool = False
    ) -> Seen:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
        )
        context.set_default_timeout(60_000)
        seen = Seen(context.new_page())
        opened.append((context, seen))
        seen.watch(file.as_uri())
        seen.page.goto(file.as_uri())
        if not folded:
            seen.page.evaluate(UNFOLD)
        return seen

    yield look
    for context, _ in opened:
        context.close()
    for _, seen in opened:
        seen.assert_quiet()


@pytest.fixture(scope="session")
def page_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PageOf:
    """The page of a kind of run, of `folders.MAKERS` or "engine": made once for all processes."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    @cache
    def page_of(kind: str) -> Path:
        folder = base / f"page of {kind}"
        with (base / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "made").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                made(kind, folder)
                (folder / "made").touch()
        return folder / "run" / PAGE_FILE

    def made(kind: str, folder: Path) -> None:
        if kind != "engine":
            folders.MAKERS[kind](folder)
            return
        library, forks = map(request.getfixturevalue, ("cuda_library", "interpreter"))
        with pytest.MonkeyPatch.context() as patch:
            quick_timing(patch)
            folders.engine(folder, partial(worker_command, folder, library, interpreter=forks))

    return page_of
