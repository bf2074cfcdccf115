from types import SimpleNamespace

import onnx
import pytest

from halfwise.api import lint
from halfwise.errors import UsageError
from halfwise.tensorrt import versions, worker
from halfwise.tensorrt.versions import (
    AT_THE_LATEST,
    FIRST_WITHOUT_WEAK,
    SINCE,
    has,
    highest_opset,
    known_version,
    logged_version,
    lowest_opset,
    since,
    support,
    tactic_sources,
    text_of,
    version_of,
)
from tests.bindings.api import VERSIONS, load


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        *(("8.6.1", 17), ("9.3", 19), ("10", 20), ("10.1", 20), ("10.14", 20)),
        *(("10.15", 24), ("10.16.1.11", 24), ("11", 25), ("12.0", 25)),
    ],
)
def test_the_highest_opset_that_is_read_for_sure(text, opset):
    assert highest_opset(version_of(text)) == opset


@pytest.mark.parametrize(
    ("version", "opset"), [((8, 5), 1), ((9, 3), 1), ((10, 1), 9), ((11, 4), 9)]
)
def test_the_lowest_opset(version, opset):
    assert lowest_opset(version) == opset


@pytest.mark.parametrize(
    ("text", "version"),
    [
        *(("8.6", (8, 6)), ("8.5.3.1", (8, 5)), ("v10.13.0", (10, 13)), (" 11.4 ", (11, 4))),
        *(("11", (11, 0)), ("v8.6", (8, 6)), ("9.3.0.post12.dev1", (9, 3)), ("9", (9, 0))),
    ],
)
def test_versions(text, version):
    assert known_version(text) == version


@pytest.mark.parametrize(
    "text", ["8.4", "12.0", "ten", "", "8.6 9", "8.6\n9", "8.6-rc1", "-11", "v"]
)
def test_what_is_no_known_version(text):
    with pytest.raises(UsageError, match="not a known version of TensorRT"):
        known_version(text)


def test_each_operator_is_onnx_own_and_in_one_table():
    tables = (set(SINCE), set(AT_THE_LATEST))
    assert sum(map(len, tables)) == len(set.union(*tables))
    # The installed onnx may be older than an operator.
    assert len([op for op in set.union(*tables) if not onnx.defs.has(op)]) <= 1


def test_the_version_is_told():
    assert support("LayerNormalization") == "TensorRT 8.6 and later have LayerNormalization."
    assert "earlier versions may" in support("Gelu")
    assert support("Unique").startswith("No TensorRT up to 11.0 has Unique")
    assert "with restrictions" in support("Resize")
    assert support("MyPlugin") == ""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("8.6", (8, 6)),
        ("10", (10, 0)),
        ("10.16.1.11", (10, 16)),
        ("11.4.0", (11, 4)),
        ("9.0.1.post12.dev4", (9, 0)),
        ("10.3.0.26+cuda12.5", (10, 3)),
        ("v8.6", (8, 6)),
        (" 11\n", (11, 0)),
    ],
)
def test_version_of(text, version):
    assert version_of(text) == version


@pytest.mark.parametrize(
    "text",
    ["", "ten", "10.", "10..1", "-8.6", "8.6-rc1", "8.6\n9", "8.6 GA", "10.3.0.26-1+cuda12.5"],
)
def test_what_is_no_version(text):
    with pytest.raises(ValueError, match="is not a version"):
        version_of(text)


def test_a_log_tells_its_version():
    assert logged_version("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec") == "8.6.1"
    assert logged_version("[I] [TensorRT v100300] # trtexec") == "10.3.0"
    assert logged_version("[I] TensorRT version: 8.5.2") == "8.5.2"
    assert logged_version("TensorRT ended") is None


# What the real bindings of a version have (tests/bindings), and the worker's own facts.

APIS = [load(version) for version in VERSIONS]


@pytest.mark.parametrize("api", APIS, ids=VERSIONS)
def test_features_are_those_of_the_bindings(api):
    flags = api.members("NetworkDefinitionCreationFlag")
    there: dict[versions.Feature, bool] = {
        "native InstanceNorm": "OnnxParserFlag" in api.module
        and "NATIVE_INSTANCENORM" in api.members("OnnxParserFlag"),
        "strong typing": "STRONGLY_TYPED" in flags,
        "bf16": "BF16" in api.members("DataType"),
        "int64": "INT64" in api.members("DataType"),
    }
    assert {feature: has(feature, api.version) for feature in there} == there
    assert ("FP16" not in api.members("BuilderFlag")) == (
        version_of(api.version) >= FIRST_WITHOUT_WEAK
    )
    assert set(tactic_sources(version_of(api.version))) == api.members("TacticSource")


def test_the_bindings_that_are_kept_are_those_that_are_called_checked():
    assert versions.CHECKED_VERSIONS == VERSIONS
    assert max(map(version_of, VERSIONS)) == worker.NEWEST_CHECKED


@pytest.mark.parametrize("text", ["8.5.3.1", "8.6.0", "9.3.0.post12.dev1", *VERSIONS])
def test_the_worker_reads_versions_and_their_typing_alike(text):
    version = version_of(text)
    low = {"FP16": 0} if version < FIRST_WITHOUT_WEAK else {}
    trt = SimpleNamespace(__version__=text, BuilderFlag=SimpleNamespace(**low))
    assert worker.version_of(trt) == version
    regimes = worker.typing_regimes(trt)
    assert ("weak" in regimes) == (version < FIRST_WITHOUT_WEAK)
    assert ("strong" in regimes) == has("strong typing", version)
    assert (regimes[0] == "strong") == has("strong typing by default", version)


@pytest.mark.parametrize("version", [(8, 5), (8, 6), (9, 3), (10, 1), (10, 9), (10, 15)])
def test_lint_and_export_agree_on_the_last_opset(version, tmp_path):
    """They said 24, 24 and 20 for 10.15; onnx-tensorrt's docs/operators.md of it says 24."""
    text, last = text_of(version), highest_opset(version)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {last + 1}]>
        g (float[4] x) => (float[4] y) {{ y = Relu(x) }}"""
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    told = [f.message for f in lint(path, trt_version=text).findings if "opset" in f.rule]
    assert len(told) == 1
    assert f"read up to {last}" in told[0]


def test_a_version_in_a_sentence():
    assert (since("int64"), since("FP4")) == ("10", "10.8")
