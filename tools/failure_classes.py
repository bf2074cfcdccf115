"""Write docs/failure-classes.md and docs/failures/ from the models in tests/models.

usage: python tools/failure_classes.py [NAME]

With the name of a model, it writes that model and its inputs into a folder of that name. Otherwise
it replaces the text between `<!-- begin BLOCK -->` and `<!-- end BLOCK -->`: `classes` is the list
of pages by symptom, `models` the table of a class, `reasons` the reasons that `halfwise fix
--no-repair` gives for one of its models. Results with repairs are from bench/results/repairs.json.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import halfwise  # noqa: E402
from halfwise.wording import count  # noqa: E402
from tests.models import CLASSES, Ill  # noqa: E402

INDEX = ROOT / "docs" / "failure-classes.md"
FOLDER = ROOT / "docs" / "failures"
REPAIRS = ROOT / "bench" / "results" / "repairs.json"
PAGES = {
    "Overflow on the way": ("overflow", "conv_chain"),
    "Normalisation written out": ("normalisation", "layer_norm"),
    "Attention and masks": ("attention", "mask_at_the_edge"),
    "Exponentials": ("exponentials", "softplus"),
    "Underflow and eps": ("underflow", "logarithm"),
    "Cancellation": ("cancellation", "cancellation"),
    "Positions, angles and coordinates": ("positions", "rotary"),
    "Near choices": ("near-choices", "arg_max"),
    "Recurrence": ("recurrence", "lstm_surplus"),
    "Weights": ("weights", "tiny_weights"),
    "FP16 accumulation": ("accumulation", "long_sum"),
    "Error that accumulates": ("depth", "deep"),
    "Beyond the calibrated range": ("beyond-the-range", "near_the_edge"),
    "Harmless": ("harmless", ""),
}
"""Family → name of its page, and the model whose run the page shows; "" for none."""
HEADER = "| model | what goes wrong | kept with `--no-repair` | guards | repaired by |"


def index() -> str:
    """Return the list of pages: the symptom of each class, and what happens."""
    lines = ["| symptom | class | what happens |", "| --- | --- | --- |"]
    for family, _ in families():
        parts = page(family).read_text(encoding="utf-8").split("\n\n")
        symptom = " ".join(parts[parts.index("## Symptom") + 1].split())
        lines.append(f"| {symptom} | [{family}](failures/{page(family).name}) | {parts[1]} |")
    return "\n".join(lines)


@cache
def families() -> tuple[tuple[str, tuple[Ill, ...]], ...]:
    """Return the models of each family."""
    ills = [make() for make in CLASSES]
    return tuple((name, tuple(group)) for name, group in groupby(ills, key=lambda i: i.family))


def listing(ills: Iterable[Ill]) -> str:
    """Return the table of a family, with links to reports of its faults."""
    repairs = json.loads(REPAIRS.read_text(encoding="utf-8"))["details"]
    ills = tuple(ills)
    rows = [row(ill, repairs.get(ill.name, {}).get("repaired", {})) for ill in ills]
    table = "\n".join([HEADER, re.sub(r"[^|]+", " --- ", HEADER), *rows])
    reported = ", ".join(links(dict.fromkeys(issue for ill in ills for issue in ill.issues)))
    return f"{table}\n\nReported in {reported}." if reported else table


def row(ill: Ill, repaired: Mapping[str, Any]) -> str:
    """Return the table row of a model."""
    guards = ", ".join(sorted(str(g) if g else "none" for g in ill.guards))
    rules = ", ".join(repaired.get("rules", ()))
    if rules and repaired["kept"]:
        rules += f", {repaired['kept']} kept"
    return f"| `{ill.name}` | {ill.story} | {kept(ill)} | {guards or '–'} | {rules or '–'} |"


def kept(ill: Ill) -> str:
    """Return which nodes are kept, in graph order, or how many."""
    order = [node.name for node in ill.proto.graph.node if node.name in ill.kept]
    nodes = ", ".join(f"`{name}`" for name in order) if ill.size is None else f"{ill.size} nodes"
    return " ".join(
        [nodes or "nothing", *([f"(`{' '.join(ill.options)}`)"] if ill.options else [])]
    )


def links(issues: Iterable[str]) -> Iterator[str]:
    """Yield a link per thread; GitHub leads from the address of an issue to a pull request."""
    for issue in issues:
        repository, _, number = issue.partition("#")
        yield f"[{issue}](https://github.com/{repository}/issues/{number})"


def reasons(ill: Ill, entries: Iterable[Mapping[str, Any]]) -> str:
    """Return how to run a model, and the reason of the first kept node of each kind of guard.

    Args:
        ill: The model.
        entries: `plan.keep` of the run's record.
    """
    options = " ".join([*ill.options, "--no-repair"])
    lines = [
        "```sh",
        f"python tools/failure_classes.py {ill.name}",
        f"halfwise fix {ill.name}/model.onnx --inputs {ill.name}/inputs.npz {options} -o run",
        "```",
        "",
        "Without repairs these nodes stay in FP32 (`plan.keep` in `run.json`):",
        "",
    ]
    told: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        told.setdefault(str(entry["guard"]), []).append(entry)
    for first, *more in told.values():
        beside = f" Likewise {count(len(more), 'more node')}." if more else ""
        lines.append(f"- `{first['node']}` ({first['op']}): {first['reason']}{beside}")
    return "\n".join(lines)


def example(ill: Ill) -> str:
    """Run a model and return its reasons."""
    with tempfile.TemporaryDirectory() as folder:
        model, inputs = save(ill, Path(folder))
        # An option that takes a number gets one.
        words = iter(ill.options)
        pairs = {name.strip("-").replace("-", "_"): next(words) for name in words}
        options: dict[str, Any] = {
            name: float(value) if re.match(r"[\d.]", value) else value
            for name, value in pairs.items()
        }
        run = halfwise.fix(model, inputs, no_repair=True, **options).run
    return reasons(ill, run.to_dict()["plan"]["keep"])


def save(ill: Ill, folder: Path) -> tuple[Path, Path]:
    """Write a model and its inputs into a folder; return their paths."""
    model, inputs = folder / "model.onnx", folder / "inputs.npz"
    onnx.save(ill.proto, model)
    np.savez(inputs, allow_pickle=False, **ill.inputs)
    return model, inputs


def put(text: str, name: str, content: str) -> str:
    """Return a page with one block replaced."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    head, found, rest = text.partition(begin)
    if not found:
        raise SystemExit(f"no block called {name}")
    return f"{head}{begin}\n{content}\n{end}{rest.partition(end)[2]}"


def block(text: str, name: str) -> str:
    """Return the content of a block of a page."""
    return text.partition(f"<!-- begin {name} -->\n")[2].partition(f"\n<!-- end {name} -->")[0]


def page(family: str) -> Path:
    """Return the page of a family."""
    return FOLDER / f"{PAGES[family][0]}.md"


def main() -> None:
    """Rewrite the pages, or write one model."""
    if sys.argv[1:]:
        named = [i for _, members in families() for i in members if i.name == sys.argv[1]]
        if not named:
            raise SystemExit(f"There is no model {sys.argv[1]}: docs/failures/ names all of them.")
        Path(named[0].name).mkdir(exist_ok=True)
        save(named[0], Path(named[0].name))
        return
    for family, members in families():
        text = put(page(family).read_text(encoding="utf-8"), "models", listing(members))
        for ill in members:
            if ill.name == PAGES[family][1]:
                text = put(text, "reasons", example(ill))
        page(family).write_text(text, encoding="utf-8")
    text = INDEX.read_text(encoding="utf-8")
    INDEX.write_text(put(text, "classes", index()), encoding="utf-8")


if __name__ == "__main__":
    main()
