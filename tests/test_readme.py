"""The README shows what the commands print."""

import re

from tools import readme

# Rounding differs between processors in the last digits; wording, counts and names do not.
NUMBERS = re.compile(r"\d+ %|\b\d{4,6}\b|\d+\.\d+|\de[+-]?\d+|≥ \S+ ×|inputs\.npz\[\d+\]|\s+")


def block(name: str) -> str:
    text = readme.README.read_text(encoding="utf-8")
    return text.split(f"<!-- begin {name} -->\n```text\n")[1].split(f"\n```\n<!-- end {name} -->")[
        0
    ]


def plain(text: str) -> str:
    return NUMBERS.sub(" ", readme.MEASURED.sub("", text))


def test_the_report_is_that_of_the_demo(tmp_path):
    (tmp_path / "examples").symlink_to(readme.ROOT / "examples")
    digits = "examples/digits"
    readme.output(
        *("fix", f"{digits}/model.onnx", "--inputs", f"{digits}/inputs.npz"),
        *("--heldout", f"{digits}/heldout.npz", "-o", "runs/demo"),
        folder=tmp_path,
    )
    printed = readme.output("report", "runs/demo", folder=tmp_path)
    assert "Kept in FP32: 0; without repairs 52" in printed
    assert plain(block("report")) == plain(printed)


def test_the_engines_are_those_of_the_recorded_run():
    assert block("engines") == readme.engines()


def test_the_help_is_that_of_the_command():
    assert block("help") == readme.output("fix", "--help")
