"""The report as one HTML file: its size, and the time to make and to show it.

Measured on made-up runs of 2,000 and 5,000 nodes with everything that a run may hold, including
four engines; their folders are on disk, like those of real runs. A page is made by `halfwise report
RUN --html` as a process, whose processor time is valid on a busy machine too. It counts as shown
when it has been painted after all of its scripts ran, in the Chromium that the tests use; the best
of the rounds counts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from bench.figures import Figure, at_most, equal, reported
from bench.runs import ROOT, Workbench
from tests.browser.conftest import arguments, executable
from tests.browser.synthetic import write_synthetic

KB, MB = 1000, 1000**2
LARGEST = {2000: 2 * MB, 5000: 4 * MB}
"""Largest size in bytes of the page, by number of nodes."""
MOST_WITHOUT_DATA = 300 * KB
MOST_SECONDS, MOST_MEMORY, MOST_SHOWN = 3.0, 300 * 2**20, 2.0
ROUNDS = 3
_DATA = re.compile(
    r'(<script type="application/json"[^>]*>|<tbody>).*?(</script>|</tbody>)', re.DOTALL
)
_MAKE = """
import json, sys, time
from halfwise.cli import main
from halfwise.memory import peak
sys.argv[:] = ["halfwise", "report", sys.argv[1], "--html"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
print(json.dumps([time.process_time(), peak()]))
"""
"""The command in a process that reports its own costs: getrusage would include the parent's."""
_PAINTED = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
    () => done(performance.now()))))"""
"""Milliseconds since the page was asked for, after the next picture of it."""


@dataclass(frozen=True)
class Made:
    """Costs of making a page.

    Attributes:
        cpu: Seconds of processor time.
        wall: Seconds of wall time.
        memory: Peak memory of the process in bytes.
    """

    cpu: float
    wall: float
    memory: int


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return sizes, times and memory; nothing without a browser."""
    path = executable()
    if path is None:
        return [], "there is no Chromium (tools/get-test-packages)"
    figures = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=arguments())
        for nodes in LARGEST:
            folder = write_synthetic(bench.folder / f"page-{nodes}", nodes)
            figures += _of_nodes(nodes, folder, browser)
        figures.append(reported("Chromium", browser.version))
        browser.close()
    return figures, None


def _of_nodes(nodes: int, folder: Path, browser: Browser) -> list[Figure]:
    made = [_made(folder) for _ in range(ROUNDS)]
    text = (folder / "report.html").read_text(encoding="utf-8")
    bare = _DATA.sub(r"\1\2", text)
    cpu, wall = min(m.cpu for m in made), min(m.wall for m in made)
    memory = max(m.memory for m in made)
    shown, requests, logged = zip(*(_shown(folder, browser) for _ in range(ROUNDS)), strict=True)
    name = f"{nodes} nodes"
    return [
        at_most(f"{name}: bytes of the page", len(text.encode()), LARGEST[nodes]),
        at_most(f"{name}: bytes of it without data", len(bare.encode()), MOST_WITHOUT_DATA),
        at_most(
            f"{name}: processor time to make it, s", cpu, MOST_SECONDS, f"{wall:.2f} s by clock"
        ),
        at_most(f"{name}: memory to make it, bytes", memory, MOST_MEMORY),
        at_most(f"{name}: time to be shown, s", min(shown), MOST_SHOWN),
        equal(f"{name}: requests", sum(requests), 0),
        equal(f"{name}: errors and warnings in the console", sum(logged), 0),
    ]


def _made(folder: Path) -> Made:
    command = [sys.executable, "-c", _MAKE, str(folder)]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    wall = time.perf_counter() - started
    cpu, memory = json.loads(done.stdout.splitlines()[-1])
    return Made(cpu, wall, memory)


def _shown(folder: Path, browser: Browser) -> tuple[float, int, int]:
    """Return seconds until it is painted, how many requests it made, and what it logged."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    requests: list[str] = []
    logged: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.goto((folder / "report.html").as_uri())
    painted = float(page.evaluate(_PAINTED)) / 1000
    page.close()
    asked = [url for url in requests[1:] if not url.startswith("data:")]
    return painted, len(asked), len(logged)
