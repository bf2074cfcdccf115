import contextlib
import io
import time
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.tensorrt.log.log import (
    KNOWN,
    LONGEST_LINE,
    Explainer,
    LogLine,
    explain,
    read_lines,
    split_line,
)


@pytest.mark.parametrize(
    ("line", "severity", "text"),
    [
        ("[11/20/2026-10:00:00] [W] [TRT] hello", "warning", "hello"),
        ("[11/20/2026-10:00:00] [TRT] [E] hello", "error", "hello"),
        ("[TensorRT] WARNING: hello", "warning", "hello"),
        ("[W] hello", "warning", "hello"),
        ("\x1b[38;5;9m[E] hello\x1b[0m", "error", "hello"),
        (r"['\x1b[38;5;9m'][E] hello", "error", "hello"),
        ("[!] hello", "error", "hello"),
        ("[V] [TRT]   hello", "verbose", "hello"),
        ("WARNING: [Torch-TensorRT TorchScript Conversion Context] - hello", "warning", "hello"),
        ("WARNING:torch_tensorrt [TensorRT Conversion Context]:hello", "warning", "hello"),
        (
            "[W:onnxruntime:Default, tensorrt_execution_provider.h:53 log] [2021-12-08 16:53:28 "
            "WARNING] D:\\a\\onnx2trt_utils.cpp:364: hello",
            "warning",
            "hello",
        ),
        (
            "2024-02-21 08:41:15.713835: W tensorflow/compiler/tf2tensorrt/utils/trt_logger.cc:83] "
            "TF-TRT Warning: DefaultLogger hello",
            "warning",
            "hello",
        ),
        ("[2023-12-25 12:50:09][Error][TRT] hello", "error", "hello"),
        ("[2022-11-08 06:01:47   ERROR] hello", "error", "hello"),
        ("[TensorRT-LLM][ERROR] hello", "error", "hello"),
        ("face_1       | [05/02/2022-15:17:45] [TRT] [E] hello", "error", "hello"),
        ("WARN         TRT: hello", "warning", "hello"),
        ("# [10/14/2023-22:31:19] [W] hello", "warning", "hello"),
        ("[libprotobuf WARNING google/protobuf/io/coded_stream.cc:604] hello", "warning", "hello"),
        ("&&&& FAILED TensorRT.trtexec", "error", "FAILED TensorRT.trtexec"),
        ("[8] Assertion failed: x", "", "[8] Assertion failed: x"),
        ("Error[10]: hello", "", "Error[10]: hello"),
        ("warning: [TRT] hello", "warning", "hello"),
        ("output: hello", "", "hello"),
        ('output: "tensor"', "", 'output: "tensor"'),
        ("plain words", "", "plain words"),
    ],
)
def test_prefixes(line, severity, text):
    assert split_line(line) == (severity, text)


def test_nodes_of_a_verbose_line_after_the_warning():
    (found,) = explain(
        [
            "[03/28/2024-08:27:29] [TRT] [W] Detected layernorm nodes in FP16.",
            "[03/28/2024-08:27:29] [TRT] [V] /norm/ReduceMean, /norm/Sub, /norm/Pow",
            "[03/28/2024-08:27:29] [TRT] [W] Running layernorm after self-attention in FP16 may",
            "[03/28/2024-08:27:29] [TRT] [V] /other/Pow, /other/Sub",
        ]
    )
    assert found.nodes == ("/norm/ReduceMean", "/norm/Sub", "/norm/Pow")
    assert found.count == 2


def test_affected_weights_of_a_verbose_log():
    found = explain(
        [
            "[W] [TRT] - 2 weights are affected by this issue: Detected subnormal FP16 values.",
            "[V] [TRT]   List of affected weights: /a/Conv.weight, /b/Conv + /b/Relu.bias",
            "[W] [TRT] - 1 weights are affected by this issue: Detected finite FP32 values which "
            "would overflow in FP16 and converted them to the closest finite FP16 value.",
            "[V] [TRT]   List of affected weights: mask_constant",
        ]
    )
    assert [f.nodes for f in found] == [("/a/Conv", "/b/Conv", "/b/Relu"), ("mask_constant",)]


def test_affected_weights_as_earlier_versions_print_them():
    name = (
        "[TRT] [W] Weights [name=Conv_{}.weight] had the following issues when converted to FP16:"
    )
    issue = "[TRT] [W]  - Subnormal FP16 values detected. "
    (found,) = explain([name.format(3), issue, name.format(7), issue])
    assert (found.kind, found.nodes, found.count) == ("weights-subnormal", ("Conv_3", "Conv_7"), 2)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec", "8.6.1"),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v101303] [b9] # ./trtexec", "10.13.3"),
        ("[11/07/2025-06:59:06] [I] TensorRT version: 10.10.0", "10.10.0"),
        ("[I] hello", None),
    ],
)
def test_version(line, version):
    explainer = Explainer()
    explainer.add(line)
    assert explainer.tensorrt == version


def test_severities_of_the_worker():
    several = "While it ran:\nit stopped"
    for lines in (
        [LogLine("internal_error", several), LogLine("warning", "hm"), LogLine("noise", "x")],
        [f"internal_error: {several}", "warning: hm", "noise: x", "verbose: y"],
    ):
        found = explain(lines)
        assert [(f.severity, f.count) for f in found] == [("error", 1), ("warning", 1)]
        assert found[0].lines[0].endswith(several)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(encoding, end):
    text = end.join(["[W] größer", "[E] b"])
    lines = list(read_lines(io.BytesIO(text.encode(encoding)), "a.log"))
    assert [line for line in lines if line] == ["[W] größer", "[E] b"]


def test_other_bytes_do_no_harm():
    assert list(read_lines(io.BytesIO("[W] größer und mehr".encode("latin-1")), "a.log")) == [
        "[W] gr\ufffd\ufffder und mehr"
    ]


@pytest.mark.parametrize(
    "content", [b"", b"\x08\x07\x12\x00\x01onnx" * 200, bytes(range(128, 256)) * 9]
)
def test_no_log(content):
    with pytest.raises(CaseError, match=r"model\.onnx is (empty|not text)"):
        list(read_lines(io.BytesIO(content), "model.onnx"))


@pytest.mark.parametrize("after", [b"", b"\n", b"\n[W] next\nlast", b"\n\n"])
def test_of_a_line_without_end_only_the_beginning_is_read(after):
    lines = list(read_lines(io.BytesIO(b"[E] " + b"x" * (3 * LONGEST_LINE) + after), "a.log"))
    assert LONGEST_LINE <= len(lines[0]) <= LONGEST_LINE + (1 << 16)
    assert lines[1:] == after.decode().splitlines()[1:]


@pytest.mark.parametrize(
    "part", ["a", "1", "a ", "a:1,", "a: ", ": 1 x", ") ", "(a [1", " ", "[E] "]
)
def test_a_long_line_takes_no_longer_than_as_many_short_ones(part):
    # trtexec repeats its command: with the names of many layers it is one word of this length.
    line = f"[I] x{part * (1 << 17)}"
    assert explain([line]) == explain([line.replace("[I]", "[V]")])


def test_a_long_verbose_log_takes_a_moment():
    verbose = "[11/20/2026-10:00:00] [V] [TRT] Tactic: 0x00000000000003e8 Time: 0.0145\n"
    warning = "[11/20/2026-10:00:00] [W] [TRT] Unknown thing number {}\n"
    content = "".join(verbose * 20 + warning.format(i) for i in range(1000)).encode()
    started = time.process_time()
    (found,) = explain(read_lines(io.BytesIO(content), "a.log"))
    assert found.count == 1000
    assert time.process_time() - started < 20


PIECES = (
    "[W] ",
    "[E] ",
    "[TRT] ",
    "\x1b[31m",
    "\n",
    " - ",
    "ForeignNode[",
    "...",
    "]}",
    'While parsing node number 3 [If -> "x"]:',
    "--- Begin node ---",
    "name: ",
    "In node 3 (importIf): BAD: ",
    "List of affected weights: ",
    "Detected layernorm nodes in FP16",
    "Weights [name=a.weight] had the following issues when converted to FP16:",
    "- 3 weights are affected by this issue: Detected subnormal FP16 values.",
    "{}",
    "Could not find any implementation for node ",
)


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=30).map("".join))
def test_any_text_is_taken_and_no_warning_or_error_is_lost(text):
    lines = [split_line(raw) for raw in text.split("\n")]
    found = explain([text])
    serious = [line for line in lines if line.severity in ("warning", "error") and line.text]
    # What announces other findings is left out where these came.
    announced = sum(
        any(m.kind == "weights" and m.compiled.search(line.text) for m in KNOWN) for line in lines
    )
    assert sum(f.count for f in found) >= len(serious) - announced
    raws = set(chain.from_iterable(f.lines for f in found))
    assert all(len(raw) <= 500 for raw in raws)


@given(st.binary(max_size=400))
def test_any_bytes_are_lines_or_an_error(content):
    with contextlib.suppress(CaseError):
        explain(read_lines(io.BytesIO(content), "a.log"))
