from halfwise.fixing.engines.device import DeviceRun
from halfwise.tensorrt.client import Worker
from tests import models
from tests.fake_tensorrt.faults import Fault


def test_a_worker_of_the_same_kind_runs_what_is_delivered(stage, fake_worker, tmp_path):
    ready = stage(models.layer_norm())
    own, folder = ready.run, tmp_path / "device"
    folder.mkdir()
    run = DeviceRun(
        *(own.case, own.settings, own.engine_settings, ready.worker, folder, ready.listener)
    )
    run.reference()
    assert run.right
    proven = run.brought(run.prove(ready.fixed), tmp_path / "model.engine")
    heldout = ready.fixed.heldout.for_watcher(ready.listener)
    with Worker("other", fake_worker()) as other:
        found = run.elsewhere(other, proven.engines, heldout)
    assert found.verdict == proven.verdict
    assert (found.worker.name, found.shares, found.builds) == ("other", "fake", ())
    assert found.row is not None
    assert found.row.latency is not None
    assert found.row.latency.median_ms > 0
    gone = [Fault("run", "disconnect")]
    with Worker("other", fake_worker(faults=gone)) as other:
        found = run.elsewhere(other, proven.engines, heldout)
    assert "is lost" in found.lost
    assert (found.verdict, found.delivered) == (None, None)
    nothing = proven.engines.model_copy(update={"delivered": None})
    assert run.elsewhere(ready.worker, nothing, heldout).results == ()
