"""docs/python.md and docs/python.ipynb: their code runs as it stands."""

import ast
import json
import re
from typing import Any

import pytest

import halfwise
from halfwise.fixing import command
from halfwise.fixing.result import Result
from halfwise.options.options import understand
from tests.unit.reporting.runs import run
from tools import readme

PAGE = readme.ROOT / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def fix():
    """`halfwise.fix`, which searches each model once, whatever is asked of it later."""
    found: dict[str, Result] = {}
    search = command.fix

    def fix(model, inputs, **options):
        understand(inputs, options)
        if model not in found:
            found[model] = search(model, inputs, **options)
        return found[model]

    return fix


@pytest.fixture(autouse=True)
def _digits(tmp_path, monkeypatch, fix):
    for name in ("model.onnx", "inputs.npz", "heldout.npz"):
        (tmp_path / name).symlink_to(readme.ROOT / "examples" / "digits" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(halfwise, "fix", fix, raising=False)
    monkeypatch.setattr(command, "fix", fix)


def test_every_block_runs_after_those_above_it(tmp_path, capsys):
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - it is our own page
    out = capsys.readouterr().out
    # A busy machine leaves no time for sums in FP16, and the verdict then says so.
    assert re.match("PASSED in emulation.* 64 held-out samples", out)
    assert (tmp_path / "mixed.onnx").is_file()
    result = names["result"]
    assert repr(result) == f"<halfwise.Result: {out.splitlines()[0]}>"
    html = result._repr_html_()
    assert html.startswith("<p><strong>PASSED")
    assert html.endswith("</svg>")
    for table in (result.nodes(), result.curve(), result.histograms()):
        sizes = {array.shape for array in table.values()}
        assert len(sizes) == 1
        assert sizes != {(0,)}
    assert result.curve()["delivered"].sum() == 1
    assert set(result.nodes()["precision"]) == {""}


def test_every_cell_of_the_notebook_runs_after_those_above_it(capsys):
    notebook = json.loads(PAGE.with_suffix(".ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names: dict[str, Any] = {}
    shown = [value for cell in cells if (value := ran("".join(cell["source"]), names)) is not None]
    result, largest, plans = shown
    assert result._repr_html_().endswith("</svg>")
    assert len(largest) == 5
    assert largest[0][2] == result.nodes()["absmax"].max()
    assert sum(delivered for *_, delivered in plans) == 1
    out = capsys.readouterr().out
    assert out.startswith("PASSED")
    *_, last = out.splitlines()
    assert re.fullmatch(r"2\^-?\d+ +\d+", last)


def ran(code: str, names: dict[str, Any]) -> Any:
    """What a notebook shows of a cell: its last line's value, if that is an expression."""
    *statements, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        statements, last = [*statements, last], ast.Expr(ast.Constant(None))
    module = ast.fix_missing_locations(ast.Module(statements, []))
    exec(compile(module, "cell", "exec"), names)  # noqa: S102 - it is our own notebook
    expression = ast.fix_missing_locations(ast.Expression(last.value))
    return eval(compile(expression, "cell", "eval"), names)  # noqa: S307


@pytest.mark.parametrize("table", ["nodes", "curve", "histograms"])
def test_a_run_without_numbers_has_empty_tables(table):
    result = Result(run(curve=None), None)
    assert {array.shape for array in getattr(result, table)().values()} == {(0,)}
