import shlex

import numpy as np
import pytest

from halfwise import api
from halfwise.fixing.engines.command import (
    Named,
    _replanned,
)
from halfwise.records import replace
from halfwise.store import MODEL_FILE, engine_file, read_run
from halfwise.tensorrt.link import model_files
from tests import models
from tests.fake_tensorrt.regions import Wrong
from tests.unit.emulation.test_folding import exported
from tests.unit.fixing.engines.test_run import wide
from tests.unit.fixing.running import found

pytestmark = pytest.mark.usefixtures("unrepaired")


class Listener:
    """A watcher that keeps what it is told."""

    def __init__(self):
        self.told = []

    def stage(self, name, total=None):
        self.told.append(("stage", name, total))

    def step(self, done, total=None, of=""):
        self.told.append(("step", done, total, of))

    def note(self, line):
        self.told.append(("note", line))


BLOCK = ("square", "variance", "eps", "root", "divide")


@pytest.fixture
def fix(fake_worker):
    def fix(ill, out=None, *, options=None, version="8.6.1", **knobs):
        how = {"builds": 1, "max_builds": 1, **(options or {})}
        command = shlex.join(fake_worker(version, **knobs))
        return api.fix(
            ill.proto, dict(ill.inputs), out=out, target="tensorrt", trt_command=command, **how
        )

    return fix


def test_without_a_folder_the_engine_stays_where_it_was_built(fix, tmp_path):
    result = fix(models.layer_norm())
    delivered = result.run.engines.delivered
    assert delivered.side == "worker"
    assert (tmp_path / "worker-cache" / "files" / delivered.sha256).exists()
    assert result.folder is None
    assert result.model is not None
    assert result.run.next_step == ()


def test_what_the_engine_does_not_need_is_dropped(fix, tmp_path):
    result = fix(models.layer_norm(), tmp_path / "run", fused=[BLOCK])
    run = result.run
    assert run.verdict.passed
    assert run.plan.keep == run.engines.keep == ()
    assert run.plan.minimal
    (spared,) = [r for r in run.plan.remarks if r.kind == "spared"]
    assert spared.numbers == {"elements": 4, "size": 4}
    delivered = run.engines.delivered.sha256
    rows = [row for row in run.engines.results if row.build.engine.sha256 == delivered]
    assert [row.name for row in rows] == ["FP16"]
    assert read_run(tmp_path / "run") == run
    assert {MODEL_FILE, engine_file()} <= {path.name for path in (tmp_path / "run").iterdir()}
    sha256 = model_files(tmp_path / "run" / "model.fp32.onnx").sha256
    assert {build.config.model_sha256 for build in run.engines.builds} == {sha256}


def test_what_the_engine_needs_besides_is_kept_and_told(fix):
    run = fix(models.layer_norm(), options={"max_builds": 4}, lossy={"gamma": 1.5}).run
    assert run.verdict.passed
    kept = {entry.node: entry.reason for entry in run.plan.keep}
    assert kept.keys() > models.layer_norm().kept
    assert "The engine needs it" in kept["gamma"]
    assert "added" in [r.kind for r in run.plan.remarks]


def test_what_no_engine_showed_to_be_needed_rests_on_the_emulation(fix):
    run = fix(models.layer_norm(), version="10.0.1").run
    assert run.verdict.passed
    assert run.plan.minimal


def test_held_out_samples_that_joined_are_on_record(fix):
    run = fix(wide(), options={"max_builds": 6, "max_abs": 0.06}, lossy={"scale": 1.01}).run
    assert run.verdict.passed
    assert run.search.joined == ("inputs[3]",)
    assert "inputs[3]" in run.search.calibration
    assert "inputs[3]" not in run.verdict.samples


def test_bf16(fix):
    run = fix(models.small(), options={"to": "bf16", "rel_max": 0.1}, version="10.0.1").run
    assert run.verdict.passed
    assert run.engines.results[-1].name == "BF16"


@pytest.mark.usefixtures("unrepaired")
def test_what_the_repaired_model_need_not_keep_is_not_said_of_the_unrepaired_one():
    fixed = found(models.layer_norm())
    kept, space = fixed.result.kept, fixed.space
    result = replace(fixed.result, spare=kept)
    other = replace(space, variant=replace(space.variant))
    space.observed.look(other.variant, space.bench.samples)
    fixed = replace(fixed, space=replace(space, original=other), result=result)
    unrepaired = _replanned(fixed, other.plan(kept), minimal=False)
    assert unrepaired.space is other
    assert "unrepaired" in {remark.kind for remark in unrepaired.plan.remarks}
    assert not any(k.spare for k in unrepaired.plan.keep)


def test_a_wrong_fp32_engine_is_cured_by_fixing_shapes_and_folding_constants(fake_worker, tmp_path):
    command = shlex.join(fake_worker(wrong=[Wrong(nodes=("size",))]))
    inputs = {"x": np.random.default_rng(1).normal(size=(4, 3, 4)).astype(np.float32)}
    out = tmp_path / "run"
    result = api.fix(
        exported(), inputs, out=out, target="tensorrt", trt_command=command, max_builds=3
    )
    assert result.run.verdict.passed
    assert "settled" in {note.kind for note in result.run.provenance.notes}
    assert (out / "model.engine").is_file()


def test_with_shapes_of_the_user_an_engine_for_one_shape_is_not_what_was_asked_for(fake_worker):
    command = shlex.join(fake_worker(wrong=[Wrong(nodes=("size",))]))
    inputs = {"x": np.random.default_rng(1).normal(size=(4, 3, 4)).astype(np.float32)}
    shapes = ["x:1x3x4"]
    result = api.fix(
        *(exported(), inputs),
        target="tensorrt",
        trt_command=command,
        min_shapes=shapes,
        opt_shapes=shapes,
        max_shapes=shapes,
    )
    assert not result.run.verdict.passed


def test_what_a_device_tells_bears_its_name():
    listener = Listener()
    one = Named(listener, "orin")
    one.stage("engines", 3)
    one.step(1, 2)
    one.note("build 1")
    assert listener.told == [("stage", "engines on orin", 3), ("note", "orin: build 1")]
