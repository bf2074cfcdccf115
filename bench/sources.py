"""From what FP16 breaks to the line of PyTorch code: three modules, exported by torch.onnx.

The modules are in `bench/exports/overflowing.py`, which exports them by torch.onnx and tells, by
PyTorch's own operators, at which of its lines values leave FP16's range. `halfwise fix` repairs
and mixes each, and its page is opened in the Chromium that the tests use: after one click on the
section of causes, the lines that are to be seen there have to be those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from bench.figures import Figure, equal, reported
from bench.peers.environments import Environment, environment
from bench.runs import ROOT, CommandFailed, Workbench
from halfwise.store import read_evidence, read_observations, read_run
from tests.browser.conftest import arguments, executable

EXPORTS = Path(__file__).resolve().parent / "exports"
SCRIPT = EXPORTS / "overflowing.py"
DATA = {"transformer": "tokens", "convnet": "images", "speech": "waves"}
BEYOND = ("overflow", "square")
"""Guards on values that leave the range."""


@dataclass(frozen=True)
class Lines:
    """The lines of the script that a run names as causes.

    Attributes:
        told: As evidence has them.
        seen: As the page shows them after one click, as they stand in the file.
        nodes: How many nodes have a source, of how many.
    """

    told: list[int]
    seen: list[int]
    nodes: str


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Export, fix and look at every module."""
    path, made = executable(), environment("torch", EXPORTS / "requirements-torch.txt")
    if path is None or made.missing is not None:
        return (
            [],
            "there is no Chromium (tools/get-test-packages)" if path is None else made.missing,
        )
    folder = bench.folder / "sources"
    folder.mkdir()
    wanted = json.loads(_run_python(made, str(SCRIPT), str(folder)).stdout.splitlines()[-1])
    figures = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=arguments())
        for name, data in DATA.items():
            lines = _lines(_run(made, folder, name, data), browser)
            right = wanted[name]
            figures += [
                equal(f"{name}: lines of causes", str(lines.told), str(right)),
                equal(
                    f"{name}: lines that the page shows after one click",
                    str(lines.seen),
                    str(right),
                ),
                reported(f"{name}: nodes of the mixed model with a line", lines.nodes),
            ]
        browser.close()
    return figures, None


def _run(made: Environment, folder: Path, name: str, data: str) -> Path:
    model, run = folder / f"{name}.onnx", folder / name
    given = ("--inputs", f"{SCRIPT}:{data}", "--allow", "random", "--allow", "unjudged")
    _run_python(made, "-m", "halfwise", "fix", str(model), *given, "-o", str(run))
    return run


def _run_python(made: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the framework's Python; halfwise's own packages are those of this process."""
    path = [ROOT / "src", Path(sysconfig.get_path("purelib"))]
    inherited = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [made.python, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), inherited])},
    )
    if done.returncode:
        raise CommandFailed(f"{' '.join(arguments)}: {done.stderr.strip()[-300:]}")
    return done


def _lines(folder: Path, browser: Browser) -> Lines:
    run, seen, evidence = read_run(folder), read_observations(folder), read_evidence(folder)
    assert seen is not None
    assert evidence is not None
    assert evidence.graph is not None
    guards = [g for g in (*seen.mended, *run.guards) if g.kind in BEYOND]
    graph = evidence.graph
    places = {**dict(zip(graph.nodes, graph.sources, strict=True)), **evidence.replaced}
    indices = [places.get(guard.node) for guard in guards]
    sources = [None if i is None else evidence.sources[i] for i in indices]
    told = {source.line if source and source.line else -1 for source in sources}
    known = sum(source is not None for source in evidence.graph.sources)
    return Lines(sorted(told), _shown(folder, browser), f"{known} of {len(evidence.graph.nodes)}")


def _shown(folder: Path, browser: Browser) -> list[int]:
    """Return the lines of the script that one click shows, in the groups on range."""
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    page.goto((folder / "report.html").as_uri())
    page.click("nav a[href='#causes']")
    text = SCRIPT.read_text(encoding="utf-8").splitlines()
    found = set()
    for group in page.locator(".fault").all():
        title = group.locator("summary").first.inner_text()
        if "beyond the range" in title or "squares" in title.lower():
            for source in group.locator(".line > .place > .source").all():
                line = int(source.locator(".file code").inner_text().rpartition(":")[2])
                same = source.locator("pre").inner_text().strip() == text[line - 1].strip()
                found.add(line if source.is_visible() and same else -line)
    page.close()
    return sorted(found)
