"""What docs/comparison.md and the README say of other tools is what the bench measured."""

from __future__ import annotations

import copy

import pytest

from tools import comparison


@pytest.fixture(scope="module")
def content():
    return comparison.read()


def test_the_document_is_that_of_the_result(content):
    assert comparison.DOCUMENT.read_text(encoding="utf-8") == comparison.document(
        content, comparison.read(comparison.REPAIRS)
    )


def test_the_table_in_the_readme_is_that_of_the_result(content):
    readme = comparison.README.read_text(encoding="utf-8")
    assert comparison.with_block(readme, content) == readme


def test_every_model_tool_and_message_is_in_the_document(content):
    text = comparison.document(content, {})
    details = content["details"]
    for tool in details["tools"].values():
        assert f"| {tool['title']} |" in text
    for name, model in details["models"].items():
        assert f"| {name} ({model['nodes']})" in text
        for attempt in model["attempts"].values():
            assert attempt["message"] is None or attempt["message"].replace("`", "'") in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (6.14e-7, "6.1e-7"), (0.034, "0.034"), (137.0, "1.4e2"), (float("inf"), "inf")],
)
def test_errors_have_two_digits(value, text):
    assert comparison.number(value) == text


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "3/2/0.00061"),
        ({"passed": False, "error": "inf"}, "3/2/inf ✗"),
        ({"end": "refused"}, "refused"),
    ],
)
def test_a_cell_tells_nodes_casts_and_error(changed, text):
    made = {"end": "made", "passed": True, "kept": 3, "casts": 2, "error": 6.1e-4, "metric": None}
    assert comparison.cell({"options": []}, made | changed) == text


def test_what_repairs_spare_is_a_column(content):
    def pair(kept, *, right=True, **rules):
        side = {"kept": kept, "passed": True, "right": right, "rules": rules}
        return {"without": side | {"kept": 3}, "repaired": side}

    pairs = {"conv_chain": pair(0, scale=1), "layer_norm": pair(2, right=False), "digits": pair(7)}
    told = {"command": "python bench/run.py repairs", "date": "2026-11-23T05", "details": pairs}
    lines = comparison.document(content, told).splitlines()
    rows = {line.split(" ")[1]: line.split(" | ")[2] for line in lines if line.startswith("| ")}
    assert rows["model"] == "repaired"
    found = [rows[name] for name in ("conv_chain", "layer_norm", "two_readers")]
    assert found == ["0, 1 scale", "2 ✗", "–"]
    text = " ".join(lines)
    assert "Of the 2 models in both measurements, 1 pass with repairs. They keep **0**" in text
    assert "FP32 nodes with repairs and 3 without." in text
    assert "repaired" not in comparison.document(content, {}).split("## Every model")[1]


def test_a_cell_tells_the_metric_that_decides():
    made = {"end": "made", "passed": True, "kept": 0, "casts": 2, "error": 0.5, "metric": 0.9875}
    model = {"options": ["--metric=bench/figures.py:f1", "--metric-drop=0.1"]}
    assert comparison.cell(model, made) == "0/2/0.5, f1 0.988"


def test_a_tool_that_is_not_installed_takes_part_in_no_sum(content):
    details = copy.deepcopy(content["details"])
    attempts = [model["attempts"] for model in details["models"].values()]
    for attempt in attempts:
        attempt["autocast-512"] |= {"end": "not installed", "passed": False, "kept": None}
    lines = list(comparison.summary(details))
    title = details["tools"]["autocast-512"]["title"]
    assert f"| {title} | not installed |" in "\n".join(lines)
    others = [tool for tool in details["tools"] if tool != "autocast-512"]
    common = sum(all(attempt[tool]["passed"] for tool in others) for attempt in attempts)
    assert f"on the {common} that all pass" in lines[0]


def test_a_readme_without_its_block_is_refused(content):
    with pytest.raises(SystemExit, match="0 blocks"):
        comparison.with_block("# halfwise", content)
