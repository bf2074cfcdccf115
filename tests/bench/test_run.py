"""The plumbing of the benches, and the detection metric; no bench is run here."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from bench import figures, inference, overhead, run
from bench.figures import Figure, Result, at_least, at_most, equal, reported
from bench.runs import MODELS_VARIABLE, ROOT, CommandFailed, Workbench, digits, models_folder

# --- figures and files ------------------------------------------------------------------------


def test_a_bar_is_reached_or_not() -> None:
    assert at_most("x", 4.0, 4).reached
    assert not at_most("x", 4.1, 4).reached
    assert not at_most("x", math.nan, 4).reached
    assert at_least("x", 0.99, 0.99).reached
    assert not at_least("x", math.nan, 0.99).reached
    assert equal("x", measured=True, wanted=True).reached
    assert not equal("x", 1, 0).reached
    assert reported("x", math.inf).reached


def test_bars_are_told_in_words() -> None:
    assert at_most("x", 1, 52).reach == "≤ 52"
    assert at_most("x", 1, 1e-6).reach == "≤ 1e-06"
    assert equal("x", 0, 0).reach == "= 0"
    assert equal("x", measured=True, wanted=True).reach == "True"
    assert reported("x", 1).reach is None


def test_a_result_is_written_whole(tmp_path: Path) -> None:
    measured = [at_most("ratio", np.float64(3.5), 4, "note"), reported("error", math.inf)]
    file = Result("some", "python bench/run.py some", measured, "half of it").save(tmp_path / "r")
    assert file == tmp_path / "r" / "some.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content.keys() == {"name", "command", "figures", "skipped", "machine", "date"}
    assert content["figures"][0] == {
        "what": "ratio",
        "reach": "≤ 4",
        "measured": 3.5,
        "reached": True,
        "note": "note",
    }
    assert content["figures"][1]["measured"] == "inf"
    assert content["skipped"] == "half of it"
    assert content["date"].endswith("+00:00")
    more = Result("more", "", [], None, details={"a": [1]}).save(tmp_path / "r")
    assert json.loads(more.read_text(encoding="utf-8"))["details"] == {"a": [1]}
    assert content["machine"].keys() >= {"cpu", "cores", "memory_gib", "python", "versions"}
    assert content["machine"]["versions"].keys() == {*figures.PACKAGES, "onnxruntime"}


def test_the_table_tells_what_was_missed_and_skipped() -> None:
    one = Result("one", "", [at_most("a", 5.0, 4), reported("b", 1.0)], None, {})
    two = Result("two", "", [at_most("c", 3.0, 4)], "no model", {})
    lines = figures.table([one, two]).splitlines()
    assert lines[1].split() == ["MISSED", "one", "a", "≤", "4", "5"]
    assert lines[2].split() == ["one", "b", "–", "1"]
    assert lines[3].split() == ["ok", "two", "c", "≤", "4", "3"]
    assert lines[4:] == ["skipped: two: no model", "1 of 2 figures reached"]
    assert not one.reached
    assert two.reached


# --- the registry -----------------------------------------------------------------------------


def test_every_bench_is_registered_and_described() -> None:
    bench = ROOT / "bench"
    defined = {
        (path.parent if path.stem == "__init__" else path).stem
        for path in (*bench.glob("*.py"), *bench.glob("*/__init__.py"))
        if re.search(r"^def measure\(_?bench: Workbench\)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert set(run.BENCHES) == defined
    readme = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    assert [name for name in run.BENCHES if f"`{name}`" not in readme] == []


def test_named_benches_run_and_write(tmp_path: Path) -> None:
    def good(_: Workbench) -> tuple[list[Figure], str | None]:
        return [at_most("x", 1, 2)], None

    def broken(_: Workbench) -> tuple[list[Figure], str | None]:
        raise CommandFailed("halfwise fix of x ended with 1")

    benches = {"good": good, "broken": broken, "other": good}
    found = run.run(["broken", "good"], Workbench(tmp_path), tmp_path / "results", benches)
    assert [(r.name, r.reached) for r in found] == [("broken", False), ("good", True)]
    assert found[0].figures[0].measured == "halfwise fix of x ended with 1"
    assert found[1].command == "python bench/run.py good"
    written = sorted(f.name for f in (tmp_path / "results").iterdir())
    assert written == ["broken.json", "good.json"]


def test_an_unknown_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["nonsense"])
    assert ended.value.code == 2
    assert "nonsense" in capsys.readouterr().err


# --- models outside the repository ------------------------------------------------------------


def test_without_the_variable_real_models_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MODELS_VARIABLE, raising=False)
    bench = Workbench(tmp_path, models_folder())
    assert [s.name for s in bench.subjects()] == ["digits"]
    measured, skipped = run.BENCHES["real_models"](bench)
    assert measured == []
    assert skipped == f"magika, ppocr_v3_det, yolox_nano: {MODELS_VARIABLE} is not set"


def test_models_that_the_folder_lacks_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "magika").mkdir()
    for file in ("model.onnx", "inputs.npz"):
        (tmp_path / "magika" / file).touch()
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path))
    bench = Workbench(tmp_path, models_folder())
    assert [s.name for s in bench.subjects()] == ["digits", "magika"]
    assert bench.missing() == f"ppocr_v3_det, yolox_nano: not in {MODELS_VARIABLE}"
    assert bench.missing(("magika",)) is None


def test_the_demo_bench_runs_the_command_of_make_demo() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    recipe = next(line for line in text.splitlines() if "halfwise fix" in line)
    makes = shlex.split(recipe.replace("$(DIGITS)", "examples/digits"))[1:]
    subject = digits()
    benches = ["fix", str(subject.model), "--inputs", str(subject.inputs), *subject.options]
    assert [*benches, "-o", "runs/demo"] == makes


# --- measuring --------------------------------------------------------------------------------


def test_calls_are_timed_in_turn() -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    times = inference.timed(calls, seconds=0)
    assert order == ["a", "b"] * (1 + inference.MIN_ROUNDS)
    assert all(0 <= t.fastest <= t.median for t in times.values())
    assert times.keys() == {"a", "b"}


def test_the_difference_counts_new_nonfinite_values() -> None:
    a = np.array([1.0, np.nan, np.inf], np.float32)
    assert inference.difference({"y": a}, {"y": a.copy()}) == 0
    assert inference.difference({"y": a}, {"y": a + np.float32(0.5)}) == 0.5
    for other in ([1, 0, np.inf], [1, np.nan, -np.inf], [np.nan, np.nan, np.inf]):
        assert inference.difference({"y": a}, {"y": np.array(other, np.float32)}) == np.inf
    assert inference.difference({"y": a}, {"y": a[:2]}) == np.inf


def test_a_chain_has_as_many_nodes_as_asked() -> None:
    assert len(overhead.chain(7).graph.node) == 7
