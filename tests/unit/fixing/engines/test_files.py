import onnx
import onnx_ir as ir

from halfwise.fixing.engines.files import FP32_FILE, ModelFiles, save
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.test_planner import planner


def test_each_file_is_written_once(tmp_path):
    made, files = planner(models.layer_norm()), ModelFiles(tmp_path)
    path = files.fp32(made.case.network)
    assert path == tmp_path / FP32_FILE
    before = path.stat().st_mtime_ns
    assert files.fp32(made.case.network).stat().st_mtime_ns == before
    nothing = files.mixed(made, frozenset())
    some = files.mixed(made, names(*models.layer_norm().kept))
    assert files.mixed(made, frozenset()) == nothing != some
    types = {n.name for n in ir.load(some).graph if n.outputs[0].dtype == ir.DataType.FLOAT}
    assert types >= models.layer_norm().kept
    assert {n.name for n in onnx.load(path).graph.node} >= models.layer_norm().kept


def test_many_weights_lie_beside_the_model(tmp_path):
    made = planner(models.large_weights())
    save(made.case.network.model, tmp_path / "m.onnx")
    onnx.checker.check_model(tmp_path / "m.onnx")
