"""`export --as netron`: a run's model with what is known of each node in its metadata."""

import json
from shutil import copytree

import onnx
import pytest

from halfwise import api
from halfwise.emulation.typed import TF32_MARK
from halfwise.errors import CaseError, UsageError
from halfwise.tools.netron import MOST_CHARACTERS
from tests import models

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """A folder with a model and the run that keeps three of its nodes."""
    folder = tmp_path_factory.mktemp("fixed")
    ill = models.conv_chain()
    ill.proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'a']")
    onnx.save(ill.proto, folder / "user.onnx")
    api.fix(folder / "user.onnx", dict(ill.inputs), out=folder / "run")
    return folder


def metadata(path):
    graph = onnx.load(path).graph
    return {n.name: {p.key: p.value for p in n.metadata_props} for n in graph.node}


def without_metadata(path):
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    return model.SerializeToString(deterministic=True)


def test_each_node_tells_its_precision_and_kept_ones_why(fixed, tmp_path):
    seen = api.annotate(fixed / "run", tmp_path / "seen.onnx")
    told, run = metadata(seen), api.report(fixed / "run")
    assert run.plan is not None
    reasons = {kept.node: kept.reason for kept in run.plan.keep}
    assert reasons.keys() == models.conv_chain().kept
    for name, entries in told.items():
        casts = " → " in entries["halfwise.precision"]
        kept = name in reasons
        assert casts or entries["halfwise.precision"] == ("FP32" if kept else "FP16")
        assert ("halfwise.reason" in entries) == kept
        assert casts or "halfwise.largest-value" in entries
    assert {"FP32 → FP16", "FP16 → FP32"} <= {e["halfwise.precision"] for e in told.values()}
    errors = {growth.node for growth in run.growth}
    assert {name for name, entries in told.items() if "halfwise.error" in entries} == errors


def test_marks_of_tf32_stay(fixed, tmp_path):
    copytree(fixed / "run", tmp_path / "run")
    mixed = onnx.load(tmp_path / "run" / "model.onnx")
    mixed.graph.node[0].metadata_props.add(key=TF32_MARK, value="1")
    onnx.save(mixed, tmp_path / "run" / "model.onnx")
    seen = metadata(api.annotate(tmp_path / "run", tmp_path / "seen.onnx"))
    assert [name for name, told in seen.items() if TF32_MARK in told] == [mixed.graph.node[0].name]


def test_it_is_the_same_model_with_the_entries_that_it_had(fixed, tmp_path):
    path = api.annotate(fixed / "run", tmp_path / "seen.onnx")
    onnx.checker.check_model(path)
    assert without_metadata(path) == without_metadata(fixed / "run" / "model.onnx")
    again = fixed / "run" / "run.json"
    assert metadata(api.annotate(again, tmp_path / "again.onnx")) == metadata(path)
    user = metadata(api.annotate(fixed / "run", tmp_path / "u.onnx", model=fixed / "user.onnx"))
    first = user[onnx.load(fixed / "user.onnx").graph.node[0].name]
    assert first["pkg.torch.onnx.name_scopes"] == "['', 'a']"
    assert {entries["halfwise.precision"] for entries in user.values()} == {"FP32"}


def test_texts_are_as_long_as_viewers_show_and_old_ones_go(fixed, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    record = json.loads((fixed / "run" / "run.json").read_text())
    for kept in record["plan"]["keep"]:
        kept["reason"], kept["because"] = "so " * 9999, None
    (run / "run.json").write_text(json.dumps(record))
    model = onnx.load(fixed / "run" / "model.onnx")
    for node in model.graph.node:
        node.metadata_props.add(key="halfwise.stale", value="of another run")
    onnx.save(model, run / "model.onnx")
    told = metadata(api.annotate(run, tmp_path / "seen.onnx"))
    reasons = [
        entries["halfwise.reason"] for entries in told.values() if "halfwise.reason" in entries
    ]
    assert {len(reason) for reason in reasons} == {MOST_CHARACTERS}
    assert not any("halfwise.stale" in entries for entries in told.values())


def test_a_run_without_a_mixed_model_tells_of_the_users(fixed, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_bytes((fixed / "run" / "run.json").read_bytes())
    told = metadata(api.annotate(run, tmp_path / "seen.onnx"))
    assert {entries["halfwise.precision"] for entries in told.values()} == {"FP32"}
    with pytest.raises(CaseError, match="This needs the FP32 model"):
        api.annotate(run, tmp_path / "other.onnx", model=tmp_path / "gone.onnx")
    with pytest.raises(UsageError, match="exists"):
        api.annotate(run, tmp_path / "seen.onnx")
