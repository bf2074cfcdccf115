import pytest

from halfwise.records import Run
from tests.unit.reporting.runs import run, verdict

FIX = ("fix", "m.onnx", "--inputs", "x.npz", "-o", "r")


@pytest.mark.parametrize("passed", [True, False])
def test_fix_as_json_prints_the_record_and_nothing_else(call, answer, passed):
    made = run(verdict=verdict(passed=passed))
    answer("fix", made)
    code, out, _ = call(*FIX, "--json")
    assert code == (0 if passed else 10)
    assert Run.model_validate_json(out) == made


def test_out_and_a_watcher_reach_the_library(call, answer):
    calls = answer("fix", run())
    assert call(*FIX)[0] == 0
    (arguments, options) = calls[0]
    assert [str(a) for a in arguments] == ["m.onnx", "x.npz"]
    assert str(options.pop("out")) == "r"
    assert options.keys() == {"watcher"}
