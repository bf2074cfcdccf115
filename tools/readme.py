"""Update the documentation with what the commands really print.

usage: python tools/readme.py [--check]

Replaces the text between `<!-- begin NAME -->` and `<!-- end NAME -->`: `report` in README.md is
what `halfwise demo` prints, and docs/images/headroom.svg shows its ranges; `engines` in
docs/tensorrt.md is the part about engines in the report of a run on a GPU
(`bench/results/gpu_resnet50_run.json.gz`); `commands` in docs/commands.md lists every command and
option. In docs/tutorial.md, the block of text after a command is its output. With `--check` nothing
is written; the exit code is 1 if a page differs in more than timings.
"""

import argparse
import gzip
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from halfwise.cli import app
from halfwise.reporting.strip import strip
from halfwise.store import read_observations, read_run

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ENGINES = ROOT / "docs" / "tensorrt.md"
COMMANDS = ROOT / "docs" / "commands.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
HEADROOM = ROOT / "docs" / "images" / "headroom.svg"
ENGINE_RUN = ROOT / "bench" / "results" / "gpu_resnet50_run.json.gz"
MEASURED = re.compile(r"(evaluations in [^;]*|[\d.]+ s); peak\s+memory [\d.]+ [KMG]iB")
# Rounding differs between processors in the last digits; wording, counts and names do not.
NUMBERS = re.compile(r"\d+ %|\b\d{4,6}\b|\d+\.\d+|\de[+-]?\d+|≥ \S+ ×|inputs\.npz\[\d+\]|\s+")
PANELS = ("Data", "Acceptance", "Plan", "Running", "Engines", "TensorRT", "Output", "Other")


STEP = re.compile(
    r"^```sh\n(?P<command>[^`]*?)(?:  # exit code (?P<code>\d+))?\n```"
    r"(?P<shown>\n\n```text\n.*?```)?$",
    re.DOTALL | re.MULTILINE,
)
"""A block of commands, the exit code of the last one, and the block of text after it."""


def output(*arguments: str, folder: Path = ROOT, code: int = 0) -> str:
    """Return what `halfwise ARGUMENTS` prints in `folder`, 100 columns wide, without colours."""
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "halfwise", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != code:
        raise SystemExit(f"halfwise {shlex.join(arguments)}: {done.returncode}\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def plain(text: str) -> str:
    """Return a text without spaces, timings, and digits that differ between processors."""
    return NUMBERS.sub(" ", MEASURED.sub("", text))


def printed(text: str) -> str:
    """Return a text as a block of Markdown."""
    return f"```text\n{text}\n```"


@cache
def demo() -> tuple[str, str]:
    """Return what `halfwise demo` prints, and its headroom strip as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        told = output("demo", folder=Path(folder))
        run = Path(folder, "demo", "run")
        drawn = strip(read_run(run), read_observations(run))
    assert drawn is not None
    return told, f"{drawn}\n"


def report() -> str:
    """Return the report of the demo, below the command that it prints."""
    return printed(demo()[0])


def engines() -> str:
    """Return the report on the engines of a recorded run, without shapes and remarks."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.json").write_bytes(gzip.decompress(ENGINE_RUN.read_bytes()))
        told = output("report", folder, "--full")
    begin, end = told.index("\nEngines\n") + 1, told.index("\n\nNext\n")
    parts = told[begin:end].split("\n\n")
    return printed("\n\n".join(p for p in parts if not p.startswith(("Shapes", "About"))))


def commands() -> str:
    """Return a table of all commands, and one of the options of each panel."""
    app_made = typer.main.get_command(app)
    assert isinstance(app_made, TyperGroup)
    found = dict(leaves(app_made))
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name, command in found.items():
        for option in options(command):
            value = f" {wanted(option)}" if wanted(option) else ""
            spelled = ", ".join(f"`{o}`" for o in option.opts) + value
            key = (option.rich_help_panel or PANELS[-1], spelled, told(option))
            rows.setdefault(key, []).append(f"`{name}`")
    lines = ["| command | what it does |", "| --- | --- |"]
    lines += [f"| `{cell(usage(n, c))}` | {cell(c.help or '')} |" for n, c in found.items()]
    for panel, members in groupby(sorted(rows, key=place), key=lambda row: row[0]):
        lines += [
            "",
            f"## {panel}",
            "",
            "| option | what it does | commands |",
            "| --- | --- | --- |",
        ]
        lines += [f"| {cell(k[1])} | {cell(k[2])} | {', '.join(rows[k])} |" for k in members]
    return "\n".join(lines)


def place(row: tuple[str, str, str]) -> tuple[int, str]:
    """Return the position of an option's panel; within it options keep their declared order."""
    return (PANELS.index(row[0]) if row[0] in PANELS else len(PANELS), row[0])


def leaves(group: TyperGroup, prefix: str = "") -> Iterator[tuple[str, TyperCommand]]:
    """Yield names and commands, including those in groups (`constraints check`)."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from leaves(command, f"{prefix}{name} ")
        elif isinstance(command, TyperCommand):
            yield prefix + name, command


def options(command: TyperCommand) -> Iterator[TyperOption]:
    """Yield the options of a command."""
    return (p for p in command.params if isinstance(p, TyperOption))


def usage(name: str, command: TyperCommand) -> str:
    """Return a command with what it requires: `fix MODEL --inputs DATA -o RUN`."""
    words = [name]
    for told in (p for p in command.params if isinstance(p, TyperArgument)):
        shown = told.metavar or str(told.name).upper()
        words.append(shown if told.required else f"[{shown}]")
    words += [f"{min(o.opts, key=len)} {wanted(o)}" for o in options(command) if o.required]
    return " ".join(words)


def told(option: TyperOption) -> str:
    """Return the help of an option, with its default if only Typer knows it."""
    stated = option.show_default and isinstance(option.default, str | int | float)
    known = stated and not option.is_flag
    return f"{option.help} Default {option.default}." if known else option.help or ""


def wanted(option: TyperOption) -> str:
    """Return what an option takes: its metavar, its choices, nothing for a flag."""
    if option.metavar or option.is_flag:
        return option.metavar or ""
    return "|".join(c for c in get_args(option.type_descriptor.annotation) if isinstance(c, str))


def tutorial() -> str:
    """Return the tutorial with the output of every command regenerated."""
    with tempfile.TemporaryDirectory() as folder:

        def ran(step: re.Match[str]) -> str:
            for line in step["command"].splitlines():
                name, *words = shlex.split(line)
                if name == "python":
                    script = [sys.executable, str(ROOT / words[0]), *words[1:]]
                    subprocess.run(script, cwd=folder, check=True)
                elif name == "halfwise":
                    told = output(*words, folder=Path(folder), code=int(step["code"] or 0))
            if step["shown"] is None:
                return step[0]
            return f"{step[0].removesuffix(step['shown'])}\n\n{printed(told)}"

        return STEP.sub(ran, TUTORIAL.read_text(encoding="utf-8"))


def cell(text: str) -> str:
    """Return a text escaped for a table cell, with its paragraphs on lines of their own."""
    escaped = text.replace("|", "\\|").replace("<", "&lt;")
    return "<br>".join(" ".join(part.split()) for part in escaped.split("\n\n"))


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    README: {"report": report},
    ENGINES: {"engines": engines},
    COMMANDS: {"commands": commands},
}


def made_anew(page: Path) -> str:
    """Return a page with its generated parts regenerated."""
    return tutorial() if page == TUTORIAL else with_blocks(page)


def with_blocks(page: Path) -> str:
    """Return a page with its blocks regenerated."""
    text = page.read_text(encoding="utf-8")
    for name, made in BLOCKS[page].items():
        block = f"<!-- begin {name} -->\n{made()}\n<!-- end {name} -->"
        pattern = re.compile(f"<!-- begin {name} -->.*?<!-- end {name} -->", re.DOTALL)
        text, count = pattern.subn(block.replace("\\", r"\\"), text)
        if count != 1:
            raise SystemExit(f"{page.name} has {count} blocks called {name}; expected one")
    return text


def main() -> int:
    """Rewrite or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    changed = 0
    for page in (*BLOCKS, TUTORIAL):
        old, new = page.read_text(encoding="utf-8"), made_anew(page)
        changed |= MEASURED.sub("", old) != MEASURED.sub("", new)
        if not check:
            page.write_text(new, encoding="utf-8")
    if not check:
        HEADROOM.write_text(demo()[1], encoding="utf-8")
    return int(check and changed)


if __name__ == "__main__":
    sys.exit(main())
