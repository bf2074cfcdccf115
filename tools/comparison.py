"""Write docs/comparison.md, and the table in README.md, from bench/results/peers.json.

usage: python tools/comparison.py [--check]

If bench/results/repairs.json exists, a column shows what halfwise keeps with repairs. In README.md
the text between `<!-- begin peers -->` and `<!-- end peers -->` is replaced. With `--check` nothing
is written; the exit code is 1 if a file would change.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "results" / "peers.json"
REPAIRS = RESULT.with_name("repairs.json")
DOCUMENT = ROOT / "docs" / "comparison.md"
README = ROOT / "README.md"
BLOCK = re.compile(r"<!-- begin peers -->.*?<!-- end peers -->", re.DOTALL)
MADE = "made"

Record = dict[str, Any]
"""A JSON object of peers.json."""

HOW = {
    "halfwise": (
        "searches by emulation, on every calibration sample",
        "`halfwise fix model.onnx --inputs calibration --heldout heldout --no-repair`, since peers "
        "repair nothing; repairs have a column of their own",
    ),
    "autocast": (
        "AutoCast of NVIDIA Model Optimizer: keeps what exceeds `data_max` (default 512) on the "
        "calibration samples; compares no outputs",
        '`convert_to_mixed_precision("model.onnx", data_max=…, keep_io_types=True, '
        'calibration_data="calibration")`',
    ),
    "converter-search": (
        "onnxconverter-common: bisects the list of nodes by the outputs of ONNX Runtime on the "
        "CPU, on one sample",
        "`auto_convert_mixed_precision(model, sample, validate_fn, keep_io_types=True)`, where "
        "`validate_fn` is the judge of this comparison; after an error with "
        "`keep_io_types=False`",
    ),
    "converter-float16": (
        "onnxconverter-common: everything to FP16 except a list of operators",
        "`convert_float_to_float16(model, keep_io_types=True)`; after an error with "
        "`keep_io_types=False`",
    ),
    "polygraphy": (
        "`polygraphy debug precision --mode bisect`: the first (forward) or last (reverse) K nodes "
        "in FP32, K by bisection",
        "its class `BisectMarker`, with halfwise's emulation on every calibration sample instead "
        "of TensorRT builds; K = 0 is tried first",
    ),
}
"""What each tool does and how it was run, by the beginning of its name."""

INTRODUCTION = """\
# Comparison with other tools

Mixed-precision tools on the same {total} models: which results pass, and how many nodes stay FP32.
The judge is halfwise's own emulation, which halfwise is built to satisfy. No engine was run.

Measured {date} on {cpu}, {cores} cores, {lanes} models at a time, load {load}. To measure again:

    {command}

This page is generated from `bench/results/peers.json` by `python tools/comparison.py`.
"""

RULES = """\
## How it is measured

Models: {classes} small ones from `tests/models`, each made to break FP16 in one way or to show that
it suffices, and {published} published ones, judged by the metric of their task.

Every tool gets the same FP32 model and calibration samples, and runs in its own process ({limit} s
at most), each peer in its own virtual environment. Every result is judged alike, on held-out
samples that no peer saw: by the ONNX checker, then by `halfwise verify`, which emulates FP16
storage.

{rule}

A cell is `FP32 nodes / Casts / error`. The error is the largest of any output, relative to the
output's largest reference value (for integer outputs, the fraction of elements that differ). At
most 0.01 is allowed, unless a metric or an option next to the model's name decides. ✗ marks a
result that fails. A cell without a result says why: `refused` (the tool stopped with an error),
`crashed`, `timeout`, `invalid` (the ONNX checker refuses the result), `not installed`; see
[the messages](#messages).

Seconds are wall time of the whole process, imports included; in brackets, of the conversion or
search alone. Assignments tried are emulations; each of Polygraphy's would be a TensorRT build. All
three are medians over the models. MiB is the highest peak of the process.
"""


REPAIRED = """\
The column *repaired* is `halfwise fix` with its defaults, measured apart (`{command}`, {date}):
`FP32 nodes, repairs`. ✗ marks a run that fails on the held-out samples, or whose file does. Of the
{models} models in both measurements, {passed} pass with repairs. They keep **{kept}** FP32 nodes
with repairs and {without} without.
"""


def read(result: Path = RESULT) -> Record:
    """Return the content of a result; empty if there is none."""
    content: Record = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    return content


def document(content: Record, repairs: Record) -> str:
    """Return docs/comparison.md.

    Args:
        content: Content of peers.json.
        repairs: Content of repairs.json; empty if repairs were not measured.
    """
    details, machine = content["details"], content["machine"]
    families = [model["family"] for model in details["models"].values()]
    published = families.count("Published models")
    introduction = INTRODUCTION.format(
        command=content["command"],
        lanes=details["lanes"],
        total=len(families),
        date=content["date"][:10],
        cpu=machine["cpu"],
        cores=machine["cores"],
        load=machine["load_average"],
    )
    rules = RULES.format(
        rule=details["rule"],
        limit=details["limit_seconds"],
        classes=len(families) - published,
        published=published,
    )
    return "\n".join(
        [
            introduction,
            *summary(details),
            "",
            *claims(content),
            "",
            *tools(details),
            rules,
            "## Every model\n",
            *told_of(repairs, details),
            *models(details, repairs),
            *messages(details),
        ]
    )


def tools(details: Record) -> Iterator[str]:
    """Yield a table of the tools: what each does, and how it was run."""
    yield "## The tools\n"
    rows: list[Sequence[str]] = []
    for begin, told in HOW.items():
        alike = [tool for name, tool in details["tools"].items() if name.startswith(begin)]
        packages = ", ".join(f"{p} {v}" for p, v in alike[0]["packages"].items())
        titles = ", ".join(tool["title"] for tool in alike)
        rows.append((titles, *told, packages or "this repository"))
    yield from table(("tool", "what it does", "how it was run", "packages"), rows)
    yield ""


def summary(details: Record) -> Iterator[str]:
    """Yield a table with a row for each tool."""
    names = list(details["models"])
    attempts = [details["models"][name]["attempts"] for name in names]
    ran = [t for t in details["tools"] if any(a[t]["end"] != "not installed" for a in attempts)]
    common = [a for a in attempts if all(a[tool]["passed"] for tool in ran)]
    yield from table(
        (
            "tool",
            f"models passed, of {len(names)}",
            "no valid result",
            "FP32 nodes where it passes (halfwise there)",
            f"FP32 nodes on the {len(common)} that all pass",
            "assignments tried",
            "seconds (conversion)",
            "MiB",
        ),
        (_row(details["tools"][t]["title"], t, attempts, common) for t in details["tools"]),
    )


def _row(title: str, tool: str, attempts: list[Record], common: list[Record]) -> Sequence[str]:
    own = [a[tool] for a in attempts]
    if all(a["end"] == "not installed" for a in own):
        return (title, *["not installed"] * 7)
    passed = [a for a in attempts if a[tool]["passed"]]
    kept, halfwise = (sum(a[t]["kept"] for a in passed) for t in (tool, "halfwise"))
    beside = "" if tool == "halfwise" else f" ({halfwise})"
    builds, seconds, alone, peak = (
        [a[field] for a in own if a[field] is not None]
        for field in ("builds", "seconds", "convert_seconds", "peak_bytes")
    )
    time = f"{statistics.median(seconds):.1f}" if seconds else "–"
    time += f" ({statistics.median(alone):.1f})" if alone else ""
    return (
        title,
        str(len(passed)),
        str(sum(a["end"] != MADE for a in own)),
        f"{kept}{beside}",
        str(sum(a[tool]["kept"] for a in common)),
        f"{statistics.median(builds):.0f}" if builds else "–",
        time,
        f"{max(peak) / 2**20:.0f}" if peak else "–",
    )


def claims(content: Record) -> Iterator[str]:
    """Yield the figures of the bench."""
    for figure in content["figures"]:
        note = f": {figure['note']}" if figure["note"] else ""
        what = figure["what"]
        yield f"- {what[0].upper()}{what[1:]}: **{figure['measured']}**{note}."


def told_of(repairs: Record, details: Record) -> Iterator[str]:
    """Yield what the column of repairs shows, and its totals."""
    pairs = repairs.get("details", {})
    both = [pairs[name] for name in details["models"] if name in pairs]
    good = [pair for pair in both if right(pair)]
    if both:
        yield REPAIRED.format(
            command=repairs["command"],
            date=repairs["date"][:10],
            models=len(both),
            passed=len(good),
            kept=sum(pair["repaired"]["kept"] for pair in good),
            without=sum(pair["without"]["kept"] for pair in good),
        )


def right(pair: Record) -> bool:
    """Return whether a repaired model passes, in its run and in its file."""
    return bool(pair["repaired"]["passed"] and pair["repaired"]["right"])


def repaired(pair: Record | None) -> str:
    """Return the cell of a model in the column of repairs."""
    if pair is None:
        return "–"
    rules = "".join(f", {count} {rule}" for rule, count in pair["repaired"]["rules"].items())
    return f"{pair['repaired']['kept']}{rules}{'' if right(pair) else ' ✗'}"


def models(details: Record, repairs: Record) -> Iterator[str]:
    """Yield a table with a row for each model."""
    pairs = repairs.get("details", {})
    titles = [tool["title"] for tool in details["tools"].values()]
    titles[1:1] = ["repaired"] if pairs else []
    rows: list[Sequence[str]] = []
    family = None
    for name, model in details["models"].items():
        if model["family"] != family:
            family = model["family"]
            rows.append((f"**{family}**", *[""] * len(titles)))
        ends = [cell(model, model["attempts"][tool]) for tool in details["tools"]]
        ends[1:1] = [repaired(pairs.get(name))] if pairs else []
        options = f" `{' '.join(model['options'])}`" if model["options"] else ""
        rows.append((f"{name} ({model['nodes']}){options}", *ends))
    yield from table(("model (compute nodes)", *titles), rows)
    yield ""


def cell(model: Record, attempt: Record) -> str:
    """Return the cell of a model in a tool's column."""
    if attempt["end"] != MADE:
        return str(attempt["end"])
    metric = next((o for o in model["options"] if o.startswith("--metric=")), "")
    told = f"{attempt['kept']}/{attempt['casts']}/{number(float(attempt['error']))}"
    if metric:
        told += f", {re.split('[=:]', metric)[-1]} {attempt['metric']:.3g}"
    return told if attempt["passed"] else f"{told} ✗"


def number(value: float) -> str:
    """Return an error with two digits: 6.1e-7, 0.034, 14, inf."""
    text = f"{value:.2g}"
    return re.sub(r"e([+-])0*", lambda sign: "e" + sign[1].replace("+", ""), text)


def messages(details: Record) -> Iterator[str]:
    """Yield the tools' messages, each with the models that it came with."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for name, model in details["models"].items():
        for tool, attempt in model["attempts"].items():
            if attempt["message"]:
                key = (details["tools"][tool]["title"], attempt["end"], attempt["message"])
                said.setdefault(key, []).append(name)
    yield "## Messages\n"
    for (title, end, message), where in sorted(said.items()):
        what = "result" if end == MADE else end
        yield f"- {title}, {what}, on {', '.join(where)}: `{message.replace('`', chr(39))}`"
    for name, model in details["models"].items():
        if joined := model["attempts"]["halfwise"]["joined"]:
            yield (
                f"- halfwise, on {name}: {joined} of {model['heldout']} held-out samples failed "
                "and joined its calibration; they are judged here too. No peer can do that."
            )
    yield ""


def table(head: Sequence[str], rows: Iterator[Sequence[str]] | list[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines]


def with_block(readme: str, content: Record) -> str:
    """Return README.md with its table regenerated."""
    block = "\n".join(["<!-- begin peers -->", *summary(content["details"]), "<!-- end peers -->"])
    text, count = BLOCK.subn(lambda _: block, readme)
    if count != 1:
        raise SystemExit(f"README.md has {count} blocks called peers; expected one")
    return text


def main() -> int:
    """Write or check both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    content, changed = read(), False
    for path, text in (
        (DOCUMENT, document(content, read(REPAIRS))),
        (README, with_block(README.read_text(encoding="utf-8"), content)),
    ):
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            changed = True
            if not check:
                path.write_text(text, encoding="utf-8")
    return int(check and changed)


if __name__ == "__main__":
    sys.exit(main())
