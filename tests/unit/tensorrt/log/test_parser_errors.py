from halfwise.tensorrt.log.log import LogLine, explain

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
    found = explain([LogLine("error", line) for line in _texts()])
    assert [(f.kind, f.nodes) for f in found] == [("parse-error", ("/block/Pad_12",))]


def _texts():
    """The same as the worker hands it over: several lines in one message."""
    lines = DUMP.format(op="Pad", reason="Assertion failed: no").splitlines()
    begin = "\n".join(line.split("cpp:722: ")[-1] for line in lines[2:16])
    return [lines[0][34:], "--- Begin node ---", begin, "--- End node ---", "\n".join(lines[-2:])]
