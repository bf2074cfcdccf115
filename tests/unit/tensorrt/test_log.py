import contextlib
import io
import re
import time
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.files import BLOCK
from halfwise.tensorrt.log import (
    LONGEST_LINE,
    Explainer,
    Findings,
    Message,
    explain,
    messages,
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
        ("2026-01-02 10:00:00,123 - ERROR - hello", "error", "hello"),
        ("2026-01-02 10:00:00,123 - tf2onnx.tfonnx - WARNING - hello", "warning", "hello"),
        ("[modelopt][onnx] - ERROR - hello", "error", "hello"),
        ("[ ERROR ] hello", "error", "hello"),
        ("E0102 10:00:00.123 1234 graph.cc:13] hello", "error", "hello"),
        ("[W1130 12:00:00.123456789 socket.cpp:697] Warning: hello", "warning", "hello"),
        ("W1130 12:00:00.123000 1234 torch/onnx/x.py:84] hello", "warning", "hello"),
        ("E RKNN: hello", "error", "RKNN: hello"),
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


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("thread 'main' panicked at src/main.rs:5:10:", True),
        ("make: *** [Makefile:12: all] Error 2", True),
        ("./model.cpp:14:5: error: 'foo' was not declared in this scope", True),
        ("AssertionError", True),
        ("npm ERR! code ELIFECYCLE", True),
        ("Uncaught (in promise) Error: no available backend found", True),
        ("ninja: build stopped: subcommand failed.", True),
        ('level=error msg="conversion"', True),
        ('{"level": "error", "msg": "conversion"}', True),
        ("[2026-01-02 10:00:00,123][modelopt.onnx][ERROR] - hello", True),
        ("2026-01-02 10:00:00 | ERROR    | mymod:func:12 - hello", True),
        ("Failed to load the model", True),
        ("There was no error during export and everything worked.", False),
        ("The error rate is 0.03. Errors: 0. Maximum error: 0.0004", False),
        ("Finished without errors. No ERROR found.", False),
        ("12 passed, 0 failed", False),
        ("FAILED: 0, ERROR: 0, 0 FAILED", False),
        ("Verification: error: 1e-5", False),
        ("[I] ERROR handling is on", False),
        ('{"level":"info","msg":"no error"}', False),
        ("I have a question about an error: what does it mean?", False),
    ],
)
def test_what_other_programs_mark_as_an_error(line, is_error):
    assert [found.severity for found in explain([line])] == ["error"] * is_error


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
        [f"internal_error: {several}", "warning: hm", "noise: x"],
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
    assert LONGEST_LINE <= len(lines[0]) <= LONGEST_LINE + BLOCK
    assert lines[1:] == after.decode().splitlines()[1:]


@pytest.mark.slow
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
        any(m.kind == "weights" and m.pattern.search(line.text) for m in messages())
        for line in lines
    )
    assert sum(f.count for f in found) >= len(serious) - announced
    raws = set(chain.from_iterable(f.lines for f in found))
    assert all(len(raw) <= 500 for raw in raws)


@given(st.binary(max_size=400))
def test_any_bytes_are_lines_or_an_error(content):
    with contextlib.suppress(CaseError):
        explain(read_lines(io.BytesIO(content), "a.log"))


def test_errors_come_first_and_what_only_follows_from_them_last():
    found = explain(
        [
            "[W] [TRT] Using kFASTER_DYNAMIC_SHAPES_0805 preview feature.",
            "[W] something odd",
            "[E] Engine could not be created from network",
            "[E] Something worse",
        ]
    )
    assert [(f.severity, f.kind) for f in found] == [
        ("error", "unknown"),
        ("error", "not-built"),
        ("warning", "unknown"),
        ("info", "preview-feature"),
    ]


def test_what_announces_others_is_left_out_where_they_came():
    header = "[W] TensorRT encountered issues when converting weights between types and that"
    special = "[W] - 3 weights are affected by this issue: Detected subnormal FP16 values."
    assert [f.kind for f in explain([header])] == ["weights"]
    assert [f.kind for f in explain([header, special])] == ["weights-subnormal"]


def test_unknown_lines_that_differ_in_numbers_are_counted_together():
    (found,) = explain([f"[W] tensor {i} at 0x{i:x}f is {i}.5" for i in range(40)])
    assert (found.kind, found.count, found.hint) == ("unknown", 40, "")
    assert found.sentence == "tensor 0 at 0x0f is 0.5"
    assert found.lines == tuple(f"[W] tensor {i} at 0x{i:x}f is {i}.5" for i in range(4))


def test_beyond_many_kinds_unknown_lines_are_still_counted():
    findings = Findings()
    for i in range(1005):
        findings.keep(
            "warning", f"odd {re.sub(r'[0-9]', lambda d: chr(97 + int(d[0])), str(i))}", ""
        )
    found = findings.records()
    assert len(found) == 1001
    assert found[-1].sentence == "More warnings of other kinds."
    assert sum(f.count for f in found) == 1005


def test_long_lines_are_cut_in_the_record():
    (found,) = explain(["[E] " + "x" * 10_000])
    assert len(found.sentence) == len(found.lines[0]) == 500


def test_an_operator_may_be_known_from_elsewhere():
    message = Message("k", "info", re.compile(r"no plugin(?: (?P<op>\w+))?"), "No {op}.", "")
    match = message.pattern.search("no plugin")
    assert match is not None
    assert message.words(match, "If") == "No If."
    assert message.words(match) == "No that a node needs."


def test_every_message_is_complete():
    severities: dict[str, str] = {}
    for message in messages():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", message.kind)
        assert message.sentence.endswith(".")
        assert message.hint or message.severity == "info", message.kind
        assert message.source.startswith("https://")
        fields = set(re.findall(r"\{(\w+)\}", message.sentence))
        assert fields <= set(message.pattern.groupindex)
        assert severities.setdefault(message.kind, message.severity) == message.severity


def test_lines_of_every_kind():
    lines = tomllib.loads((Path(__file__).parent / "log_lines.toml").read_text())["line"]
    kinds = {line.get("kind") for line in lines}
    assert {message.kind for message in messages()} <= kinds
    for line in lines:
        found = explain([line["text"]])
        assert [f.kind for f in found] == ([line["kind"]] if "kind" in line else []), line["text"]
        if "sentence" in line:
            assert found[0].sentence == line["sentence"]


DUMP = """\
[02/03/2022-06:14:51] [E] [TRT] ModelImporter.cpp:720: While parsing node number 12 [{op} -> "out"]:
[02/03/2022-06:14:51] [E] [TRT] ModelImporter.cpp:721: --- Begin node ---
[02/03/2022-06:14:51] [E] [TRT] ModelImporter.cpp:722: input: "a"
output: "out"
name: "/block/{op}_12"
op_type: "{op}"
attribute {{
  name: "then_branch"
  g {{
    node {{
      name: "inner"
      op_type: "Round"
    }}
  }}
  type: GRAPH
}}

[02/03/2022-06:14:51] [E] [TRT] ModelImporter.cpp:723: --- End node ---
[02/03/2022-06:14:51] [E] [TRT] ModelImporter.cpp:726: ERROR: a.cpp:46 In function import{op}:
[8] {reason}
"""
MISSING = (
    'Assertion failed: creator && "Plugin not found, are the plugin name, version, and namespace '
    'correct?"'
)


def only(text):
    (finding,) = explain(text.splitlines())
    return finding


def test_the_node_is_named_and_the_reason_told():
    found = only(DUMP.format(op="Pad", reason="Assertion failed: inputs.at(1).is_weights()"))
    assert (found.kind, found.severity) == ("parse-error", "error")
    assert found.nodes == ("/block/Pad_12",)
    assert found.sentence == (
        "The parser rejects the operator Pad: Assertion failed: inputs.at(1).is_weights()"
    )
    assert found.hint.startswith("TensorRT supports Pad with restrictions")
    assert found.count == sum(map(bool, DUMP.splitlines()))


def test_an_operator_that_a_later_version_has():
    found = only(DUMP.format(op="LayerNormalization", reason=MISSING))
    assert found.kind == "operator-unsupported"
    assert found.nodes == ("/block/LayerNormalization_12",)
    assert found.hint == "TensorRT 8.6 and later have LayerNormalization."


def test_an_operator_of_nobody():
    found = only(DUMP.format(op="GridSample3D", reason=MISSING))
    assert found.kind == "plugin-missing"
    assert found.sentence.startswith("The parser does not support the operator GridSample3D,")
    assert "--plugins" in found.hint


def test_an_operator_in_a_body_is_blamed_not_the_if_around_it():
    text = "[E] [TRT] 3: getPluginCreator could not find plugin: Unique version: 1\n"
    found = only(text + DUMP.format(op="If", reason=MISSING))
    assert found.sentence == "This version of TensorRT does not support the operator Unique."
    assert found.nodes == ("/block/If_12",)


def test_what_python_and_polygraphy_print():
    found = only(
        "In node 11 with name: /dense/GridSample and operator: GridSample3D "
        '(checkFallbackPluginImporter): INVALID_NODE: creator && "Plugin not found, are the plugin '
        'name, version, and namespace correct?"'
    )
    assert (found.kind, found.nodes) == ("plugin-missing", ("/dense/GridSample",))
    found = only("[E] In node 423 (importTopK): UNSUPPORTED_NODE: Assertion failed: k is wrong")
    assert found.nodes == ("node 423",)
    assert found.sentence.startswith("The parser rejects the operator TopK: Assertion failed: k")
    found = only(
        "In node -1 (parseGraph): UNSUPPORTED_NODE: Assertion failed: convertOnnxWeights(a)"
    )
    assert (found.kind, found.nodes) == ("weights-unreadable", ())


def test_the_same_error_twice_is_one_finding():
    text = DUMP.format(op="Pad", reason="Assertion failed: no")
    text += "[E] In node 12 (importPad): UNSUPPORTED_NODE: Assertion failed: no\n"
    assert only(text).count == sum(map(bool, text.splitlines()))


def test_a_log_that_ends_within_a_node_hides_nothing_after_it():
    head = DUMP.format(op="Pad", reason="x").split("attribute")[0]
    found = explain([*head.splitlines(), "[W] [TRT] Some new warning"])
    assert [f.kind for f in found] == ["parse-error", "unknown"]


def test_lines_with_severities_of_their_own():
    found = explain([f"error: {line}" for line in _texts()])
    assert [(f.kind, f.nodes) for f in found] == [("parse-error", ("/block/Pad_12",))]


def _texts():
    """The same as the worker hands it over: several lines in one message."""
    lines = DUMP.format(op="Pad", reason="Assertion failed: no").splitlines()
    begin = "\n".join(line.split("cpp:722: ")[-1] for line in lines[2:16])
    return [lines[0][34:], "--- Begin node ---", begin, "--- End node ---", "\n".join(lines[-2:])]
