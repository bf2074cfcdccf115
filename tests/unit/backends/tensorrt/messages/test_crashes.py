import pytest

from halfwise.backends.tensorrt.log import explain
from halfwise.backends.tensorrt.messages import STOPPED
from tests.unit.backends.tensorrt.messages.wordings import kind_of

LINES = [
    ("crash", "Segmentation fault (core dumped)"),
    ("crash", "build.sh: line 3: 12345 Segmentation fault      (core dumped) trtexec --fp16"),
    ("crash", "启用FP16精度时出现段错误"),
    ("crash", "terminate called after throwing an instance of 'std::logic_error'"),
    ("crash", "Aborted (core dumped)"),
    ("crash", "Floating point exception (core dumped)"),
    ("crash", "Trace/breakpoint trap (core dumped)"),
    ("killed", "Killed"),
    ("killed", "[123.4] Out of memory: Killed process 7 (trtexec)"),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind
    assert kind in STOPPED


@pytest.mark.parametrize(
    "line", ["[I] Nothing was killed here", "[V] the option Aborted= is unknown", "no core dumped"]
)
def test_what_is_no_crash(line):
    assert explain([line]) == ()


def test_a_fault_that_tensorrt_caught_is_the_compilers():
    kind, _ = kind_of("[E] [TRT] MyelinCheckException: autotuner.cpp:1: Segmentation fault")
    assert kind == "myelin"
