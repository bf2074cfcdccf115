"""Write into README.md what the commands really print.

usage: python tools/readme.py [--check]

Replaces what stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. `report` is the report
of `runs/demo` (made by `make demo`), `help` the help of `halfwise fix`, `engines` what the report
of a run on a GPU says of its engines (`bench/results/gpu_resnet50_run.json.gz`). With `--check`
nothing is written; the exit code is 1 where README.md differs in more than timings.
"""

import argparse
import gzip
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
COMMANDS = {"report": ("report", "runs/demo"), "help": ("fix", "--help")}
ENGINE_RUN = ROOT / "bench" / "results" / "gpu_resnet50_run.json.gz"
MEASURED = re.compile(r"evaluations in .*?peak memory [\d.]+ [KMG]iB", re.DOTALL)


def output(*arguments: str, folder: Path = ROOT) -> str:
    """Return what `halfwise ARGUMENTS` prints in `folder`, 100 columns wide, without colours."""
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "halfwise", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def engines() -> str:
    """Return what a recorded run says of its engines."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.json").write_bytes(gzip.decompress(ENGINE_RUN.read_bytes()))
        told = output("report", folder)
    begin, end = told.index("\nEngines\n") + 1, told.index("\n\nNext\n")
    return told[begin:end]


def with_outputs(text: str) -> str:
    """Return the README with every block made anew."""
    blocks = {name: output(*arguments) for name, arguments in COMMANDS.items()}
    for name, shown in (blocks | {"engines": engines()}).items():
        block = f"<!-- begin {name} -->\n```text\n{shown}\n```\n<!-- end {name} -->"
        pattern = re.compile(f"<!-- begin {name} -->.*?<!-- end {name} -->", re.DOTALL)
        text, count = pattern.subn(block.replace("\\", r"\\"), text)
        if count != 1:
            raise SystemExit(f"README.md has {count} blocks called {name}; expected one")
    return text


def main() -> int:
    """Rewrite or check README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    old = README.read_text(encoding="utf-8")
    new = with_outputs(old)
    if not parser.parse_args().check:
        README.write_text(new, encoding="utf-8")
        return 0
    return int(MEASURED.sub("", old) != MEASURED.sub("", new))


if __name__ == "__main__":
    sys.exit(main())
