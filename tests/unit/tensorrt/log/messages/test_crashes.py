import pytest

from halfwise.tensorrt.log.log import explain
from halfwise.tensorrt.log.messages import STOPPED
from tests.unit.tensorrt.log.messages.wordings import kind_of

LINES = [
    ("crash", "Segmentation fault (core dumped)"),
    ("crash", "build.sh: line 3: 12345 Segmentation fault      (core dumped) trtexec --fp16"),
    ("crash", "启用FP16精度时出现段错误"),
    ("crash", "zsh: segmentation fault (core dumped)  trtexec --onnx=m.onnx"),
    ("crash", "[1]    12345 segmentation fault (core dumped)  trtexec --onnx=m.onnx"),
    ("crash", "make: *** [Makefile:3: engine] Segmentation fault (core dumped)"),
    ("crash", "Fatal Python error: Segmentation fault"),
    ("crash", "Fatal Python error: Aborted"),
    ("crash", "zsh: abort (core dumped)  trtexec --onnx=m.onnx"),
    ("crash", "Command terminated by signal 11"),
    ("crash", "Process finished with exit code 139"),
    ("crash", "Process finished with exit code -1073741819 (0xC0000005)"),
    ("crash", "b.sh: ligne 3 : 12345 Erreur de segmentation   trtexec --fp16"),
    ("crash", "Speicherzugriffsfehler (Speicherabzug geschrieben)"),
    ("crash", "Abgebrochen (Speicherabzug geschrieben)"),
    ("crash", "已放弃 \uff08核心已转储\uff09"),
    ("crash", "Ошибка сегментирования (образ памяти сброшен на диск)"),
    ("crash", "terminate called after throwing an instance of 'std::logic_error'"),
    ("crash", "Aborted (core dumped)"),
    ("crash", "Floating point exception (core dumped)"),
    ("crash", "Trace/breakpoint trap (core dumped)"),
    ("killed", "Killed"),
    ("killed", "Getötet"),
    ("killed", "zsh: killed     trtexec --onnx=m.onnx"),
    ("killed", "b.sh: 第 3 行\uff1a 12345 已杀死  trtexec --fp16"),
    ("killed", "[123.4] Out of memory: Killed process 7 (trtexec)"),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind
    assert kind in STOPPED


@pytest.mark.parametrize(
    "line",
    [
        "[I] Nothing was killed here",
        "[V] the option Aborted= is unknown",
        "no core dumped",
        "[I] Aborted: 0, killed: 0",
        "[I] exit code 1390",
        "[I] Builder: Killed no tactic",
    ],
)
def test_what_is_no_crash(line):
    assert explain([line]) == ()


def test_a_fault_that_tensorrt_caught_is_the_compilers():
    kind, _ = kind_of("[E] [TRT] MyelinCheckException: autotuner.cpp:1: Segmentation fault")
    assert kind == "myelin"
