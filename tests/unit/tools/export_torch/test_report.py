from halfwise.records import Exported
from halfwise.reporting.parts import Lines, Table
from halfwise.tools.export_torch.report import exported


def record(**changed):
    values = {
        "module": "net.py:make",
        "model": "m.onnx",
        "exporter": "dynamo",
        "opset": 18,
        "nodes": 16,
        "inputs": ("x batch×3",),
        "outputs": ("y",),
        "tolerance": 1e-4,
        "checks": ({"sizes": {"batch": 1}, "error": 1e-7}, {"sizes": {"batch": 2}, "error": 2e-7}),
        "passed": True,
    }
    return Exported.model_validate(values | changed)


def test_an_export_that_is_right():
    shown = exported(record())
    assert shown.title == "m.onnx computes the same: off by at most 2e−7 of the largest value"
    assert shown.passed
    assert shown.about == "net.py:make · dynamo exporter · opset 18 · 16 nodes · 0.0001 is allowed"
    table, inputs = shown.parts
    assert isinstance(table, Table)
    assert table.rows == (("1", "1e−7"), ("2", "2e−7"))
    assert inputs == Lines("Inputs", ("x batch×3",))


def test_an_export_that_is_wrong():
    broken = {"sizes": {"batch": 2}, "error": "Infinity", "problem": "it does not run\x1b"}
    shown = exported(record(passed=False, checks=(broken,)))
    assert "SOMETHING ELSE: off by at most inf" in shown.title
    assert shown.parts[1] == Lines("Problems", ("it does not run\N{REPLACEMENT CHARACTER}",))
    assert exported(record(checks=())).parts


def test_what_tracing_took_for_constant():
    shown = exported(record(traced=("net.py, line 7: Converting a tensor to a Python boolean",)))
    assert shown.passed
    title = "Traced as constants: other inputs may do something else"
    line = "net.py, line 7: Converting a tensor to a Python boolean"
    assert shown.parts[1] == Lines(title, (line,))
