from halfwise.reporting.devices import device_parts
from halfwise.reporting.engines import engine_parts
from halfwise.reporting.parts import Lines, Table
from tests.unit.reporting.engine_runs import engines, result
from tests.unit.reporting.runs import verdict


def on(name, **changed):
    found = engines(**{"verdict": verdict(), **changed})
    return found.model_copy(update={"worker": found.worker.model_copy(update={"name": name})})


def cells(devices):
    table = device_parts(devices)[-1]
    assert isinstance(table, Table)
    assert table.title == "One plan on each device, on held-out samples"
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def test_one_device_is_told_as_ever():
    one = engines()
    assert device_parts([one]) == engine_parts(one)
    assert device_parts([]) == ()


def test_a_row_for_each_device():
    row = result("mixed", 4, 2.5, kept=3, rung="fp16")
    assert row.build.engine is not None
    delivered = row.build.engine.model_copy(update={"path": "model.orin.engine"})
    orin = on("orin", results=(row,), delivered=delivered)
    found = cells([orin, on("a100", lost="No answer.", results=())])
    assert found[0] | {"max error": ""} == {
        "device": "orin",
        "passed": "yes",
        "rung": "FP16",
        "max error": "",
        "ms": "2.5",
        "FP32 nodes": "3",
        "engine": "model.orin.engine",
    }
    assert (found[1]["device"], found[1]["passed"]) == ("a100", "lost")


def test_what_is_shared_and_what_is_lost_is_told():
    parts = device_parts([on("a"), on("b", shares="a"), on("c", lost="No answer.")])
    told = {part.title: " ".join(part.lines) for part in parts if isinstance(part, Lines)}
    assert "Of the same kind as a" in told["On b"]
    assert "Lost before its engine was judged: No answer." in told["On c"]
