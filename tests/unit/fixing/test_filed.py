"""Files that fail where their emulation passes, in models that decide nothing inside.

What ONNX Runtime does otherwise is imitated: the outputs are reversed while a certain node is low.
"""

from functools import partial

import pytest

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing import filed, holding
from halfwise.fixing.filed import demand, pass_on
from halfwise.judging.file_run import run_as_file
from tests.models import Ill, signals, weights
from tests.unit.fixing.test_loop import Listener, found, kept
from tests.unit.fixing.test_planner import planner
from tests.unit.graph.sketch import Sketch

pytestmark = pytest.mark.usefixtures("unrepaired")


def chain() -> Ill:
    s = Sketch()
    x = s.input("x", [1, 8])
    for i in range(4):
        x = s.op("MatMul", x, weights(8, 8, seed=i, scale=0.3), name=f"mat{i}")
    return Ill(s.proto(x), {"x": signals(1, 8, seed=3, count=12)})


def reversed_while_low(node, model, samples, references, *, runtime):
    results = run_as_file(model, samples, references, runtime=runtime)
    (own,) = [n for n in model.graph if n.name == node]
    low = own.outputs[0].dtype.name == "FLOAT16"
    return [{n: a[..., ::-1] if low else a for n, a in r.items()} for r in results]


def failing(*_, **__):
    raise RunFailed("it does not run")


def refusing(*_, **__):
    raise CaseError("it does not load")


@pytest.mark.parametrize("options", [{}, {"metric": "snr", "metric_drop": 60.0}])
def test_the_search_goes_on_until_the_file_passes(monkeypatch, options):
    for module in (filed, holding):
        monkeypatch.setattr(module, "run_as_file", partial(reversed_while_low, "mat2"))
    listener = Listener()
    fixed = found(chain(), listener, **options)
    assert kept(fixed) == {"mat2"}
    assert fixed.verdict.passed
    assert fixed.verdict.as_file is not None
    assert fixed.verdict.as_file.passed
    assert fixed.search.joined
    assert fixed.search.filed == fixed.search.joined
    assert any("fail as ONNX Runtime runs the file" in note for note in listener.notes)


def test_what_is_demanded_of_one_planner_is_of_another(monkeypatch):
    monkeypatch.setattr(filed, "run_as_file", partial(reversed_while_low, "mat2"))
    one, other = planner(chain()), planner(chain())
    pass_on(one, other)
    nothing, node = frozenset[str](), frozenset({"mat2"})
    assert other.trials.beyond(nothing) == 0
    first, rest = one.trials.samples.select([0]), one.trials.samples.select([1, 2])
    demand(one, first, tuple(one.trials.references[:1]))
    demand(one, rest, tuple(one.trials.references[1:3]))
    pass_on(one, other)
    assert len(other.trials.beyond.samples) == 3
    assert other.trials.beyond(nothing) > 1 > other.trials.beyond(node)


def test_a_file_that_is_refused_demands_nothing_and_one_that_fails_is_out(monkeypatch):
    made = planner(chain())
    demand(made, made.trials.samples, tuple(made.trials.references))
    monkeypatch.setattr(filed, "run_as_file", refusing)
    assert made.trials.beyond(frozenset()) == 0
    monkeypatch.setattr(filed, "run_as_file", failing)
    assert made.trials.beyond(frozenset()) > 1
