from halfwise.records import DynamicAxis, JudgedBatch, TensorName
from halfwise.reporting.sizes import size_lines
from tests.unit.reporting.runs import verdict

BATCH = JudgedBatch(
    size=2,
    shapes={TensorName("ids"): (2, 77)},
    samples=("a", "b", "c", "d"),
    whole=False,
    passed=True,
    rel_max={"y": 0.001},
)


def axis(*sizes, symbol="n", **further):
    inputs = {TensorName("ids"): 0, TensorName("mask"): 0}
    return DynamicAxis(inputs=inputs, symbol=symbol, sizes=sizes, **further)


def lines(*axes, batch=None):
    return list(size_lines(verdict(axes=axes, batch=batch)))


def test_nothing_of_a_static_model():
    assert lines() == []


def test_an_axis_at_two_sizes():
    assert lines(axis(3, 5, symbol=None)) == ["Axis 0 of ids, mask is dynamic: judged at 3 and 5."]
    assert lines(axis(1, 2), batch=BATCH) == [
        "Axis 0 'n' of ids, mask is dynamic: judged at 1 and 2 (4 samples put together)."
    ]


def test_batches_that_are_compared_whole_or_fail():
    whole = BATCH.model_copy(update={"whole": True, "passed": False})
    (line,) = lines(axis(1, 2), batch=whole)
    assert "(whole batches of 2, since the model itself mixes their samples; give inputs" in line


def test_a_record_may_name_no_size():
    assert len(lines(axis())) == 1


def test_an_axis_at_one_size():
    (line,) = lines(axis(640))
    assert line.endswith("is dynamic, and every sample has 640: other sizes were not judged.")
    (line,) = lines(axis(1, why="fails", detail="it fails at node a"))
    assert line.endswith("not judged; no batches were judged: it fails at node a.")


def test_many_sizes_are_cut():
    (line,) = lines(axis(*range(1, 30)))
    assert "judged at 29 sizes from 1 to 29." in line
