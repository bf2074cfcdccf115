import hashlib
import json

import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.store import write_run
from tests import models
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.runs import verification
from tests.unit.tensorrt.recipes import words_of

pytestmark = pytest.mark.usefixtures("unrepaired")

KINDS = ("trtexec", "python", "cpp", "json")
KEPT = ["conv_b", "relu", "conv_c"]


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """A folder with a model and the run that keeps three of its nodes."""
    folder = tmp_path_factory.mktemp("fixed")
    ill = models.conv_chain()
    onnx.save(ill.proto, folder / "user.onnx")
    api.fix(folder / "user.onnx", dict(ill.inputs), out=folder / "run")
    return folder


def unnamed(folder):
    """Fix a model whose nodes have no names, and return the run folder."""
    ill = models.conv_chain()
    for node in ill.proto.graph.node:
        node.name = ""
    onnx.save(ill.proto, folder / "unnamed.onnx")
    return api.fix(folder / "unnamed.onnx", dict(ill.inputs), out=folder / "run").folder


def option(exported, name):
    (text,) = exported.texts.values()
    (value,) = (w.partition("=")[2] for w in words_of(text) if w.startswith(f"{name}="))
    return value


@pytest.mark.parametrize("version", ["8.5", "8.6", "9.3", "10", "11.4"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_for_each_version(fixed, kind, version, tmp_path):
    exported = api.export(fixed / "run", kind, out=tmp_path / "out", trt_version=version)
    weak = version < "9" and len(version) == 3
    assert [c.node for c in exported.recipe.constraints] == (KEPT if weak else [])
    assert sorted(path.name for path in exported.written) == sorted(exported.texts)
    for path in exported.written:
        assert path.read_text(encoding="utf-8") == exported.texts[path.name]
        assert bool(path.stat().st_mode & 0o100) == (path.suffix == ".sh")


def test_strong_typing_builds_the_mixed_model(fixed):
    exported = api.export(fixed / "run", "trtexec")
    path = fixed / "run" / "model.onnx"
    assert option(exported, "--onnx") == str(path)
    assert exported.written == ()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert exported.recipe.files == {"model.onnx": digest}
    assert api.export(fixed / "run" / "run.json", "trtexec").texts == exported.texts


def test_weak_typing_builds_the_users_model(fixed):
    exported = api.export(fixed / "run", "trtexec", trt_version="8.6")
    assert option(exported, "--onnx") == str(fixed / "user.onnx")
    assert option(exported, "--layerPrecisions") == ",".join(f"{n}:fp32" for n in KEPT)


def test_a_recipe_beside_the_model_names_it_alone(fixed, tmp_path):
    inside = api.export(fixed / "run", "trtexec", out=fixed / "run" / "build.sh")
    assert option(inside, "--onnx") == "model.onnx"
    assert inside.written == (fixed / "run" / "build.sh",)
    above = api.export(fixed / "run", "json", out=fixed)
    assert json.loads((fixed / "recipe.json").read_text())["model"] == "run/model.onnx"
    assert above.written == (fixed / "recipe.json",)
    elsewhere = api.export(fixed / "run", "json", out=tmp_path / "r.json")
    assert elsewhere.recipe.model == str(fixed / "run" / "model.onnx")


def test_the_models_own_folder_wins_where_it_is_in_the_run(fixed, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "model.onnx"):
        (run / name).write_bytes((fixed / "run" / name).read_bytes())
    (run / "model.fp32.onnx").write_bytes((fixed / "user.onnx").read_bytes())
    exported = api.export(run, "json", trt_version="8.6", out=run)
    assert exported.recipe.model == "model.fp32.onnx"


def test_nothing_is_overwritten(fixed, tmp_path):
    (tmp_path / "build_engine.py").touch()
    for out in (tmp_path, tmp_path / "build_engine.py"):
        with pytest.raises(UsageError, match="exists"):
            api.export(fixed / "run", "python", out=out)
    assert (tmp_path / "build_engine.py").read_bytes() == b""


def test_a_place_that_is_a_file(fixed, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="Cannot create"):
        api.export(fixed / "run", "python", out=tmp_path / "file" / "x.py")
    with pytest.raises(UsageError, match="Cannot create"):
        api.export(fixed / "run", "cpp", out=tmp_path / "file")


def test_unnamed_nodes_need_a_folder(tmp_path):
    run = unnamed(tmp_path)
    with pytest.raises(CaseError, match="3 of 3 kept nodes have no name") as error:
        api.export(run, "trtexec", trt_version="8.6")
    assert "Give a folder with -o" in error.value.hint
    exported = api.export(run, "trtexec", trt_version="8.6", out=tmp_path / "out")
    assert option(exported, "--onnx") == "model.fp32.onnx"
    named = onnx.load(tmp_path / "out" / "model.fp32.onnx")
    kept = [c.node for c in exported.recipe.constraints]
    assert len(kept) == 3
    assert set(kept) <= {node.name for node in named.graph.node}
    data = (tmp_path / "out" / "model.fp32.onnx").read_bytes()
    assert exported.recipe.files == {"model.fp32.onnx": hashlib.sha256(data).hexdigest()}
    assert api.export(run, "trtexec").recipe.typing == "strong"


def test_an_fp16_export_is_widened(tmp_path):
    ill = models.conv_chain()
    mixed = api.fix(ill.proto, dict(ill.inputs)).model
    assert mixed is not None
    onnx.save(mixed, tmp_path / "mixed.onnx")
    run = api.fix(tmp_path / "mixed.onnx", dict(ill.inputs), out=tmp_path / "run").folder
    assert run is not None
    with pytest.raises(CaseError, match="stores FP16"):
        api.export(run, "json", trt_version="8.6")
    api.export(run, "json", trt_version="8.6", out=tmp_path / "out")
    wide = onnx.load(tmp_path / "out" / "model.fp32.onnx")
    assert {t.data_type for t in wide.graph.initializer} == {onnx.TensorProto.FLOAT}


def test_the_model_has_moved(fixed, tmp_path):
    run = unnamed(tmp_path)
    (tmp_path / "unnamed.onnx").rename(tmp_path / "moved.onnx")
    with pytest.raises(CaseError, match="is missing"):
        api.export(run, "json", trt_version="8.6")
    out = tmp_path / "out"
    api.export(run, "json", trt_version="8.6", out=out, model=tmp_path / "moved.onnx")
    with pytest.raises(RecordMismatch, match="its hash differs"):
        api.export(run, "json", trt_version="8.6", model=fixed / "user.onnx")


def test_the_model_is_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ill = models.conv_chain()
    onnx.save(ill.proto, "user.onnx")
    run = api.fix("user.onnx", dict(ill.inputs), out=tmp_path / "run").folder
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    onnx.save(models.layer_norm().proto, "user.onnx")  # another one of that name
    assert run is not None
    assert api.export(run, "json", trt_version="8.6", out="weak").written


def test_dynamic_axes(tmp_path):
    s = Sketch()
    x = s.input("x", ["N", 16])
    y = s.op("Pow", s.op("Mul", x, 300.0, name="mul"), 2.0, name="pow")
    inputs = {"x": np.random.default_rng(0).standard_normal((8, 2, 16)).astype(np.float32)}
    onnx.save(s.proto(y), tmp_path / "m.onnx")
    run = api.fix(tmp_path / "m.onnx", inputs, out=tmp_path / "run").folder
    assert run is not None
    assert option(api.export(run, "trtexec"), "--optShapes") == "x:2x16"
    exported = api.export(run, "trtexec", opt_shapes=["x:4x16"])
    assert option(exported, "--minShapes") == "x:4x16"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"kind": "onnx"}, UsageError),
        ({"trt_version": "7"}, UsageError),
        ({"typing": "weak", "trt_version": "11"}, UsageError),
    ],
)
def test_what_there_is_not(fixed, arguments, error):
    with pytest.raises(error):
        api.export(fixed / "run", **{"kind": "json", **arguments})


def test_runs_that_have_no_recipe(tmp_path):
    with pytest.raises(RecordMismatch):
        api.export(tmp_path, "json")
    write_run(tmp_path, verification())
    with pytest.raises(CaseError, match="has no plan"):
        api.export(tmp_path, "json")


def test_a_run_that_lost_its_model(fixed, tmp_path):
    (tmp_path / "run.json").write_bytes((fixed / "run" / "run.json").read_bytes())
    with pytest.raises(RecordMismatch, match=r"lacks model\.onnx"):
        api.export(tmp_path, "python", trt_version="10.16")
