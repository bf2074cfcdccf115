import hashlib

import onnx
import pytest

from halfwise.errors import CaseError
from halfwise.graph import reading
from halfwise.graph.model import load_network
from halfwise.graph.reading import read_proto
from halfwise.graph.unchecked import read_unchecked
from halfwise.progress import PERCENT
from tests import models


@pytest.mark.parametrize("block", [7, 1 << 24])
def test_a_file_is_read_and_heard_in_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(reading, "_BLOCK_BYTES", block)
    proto, path = models.layer_norm().proto, tmp_path / "model.onnx"
    onnx.save(proto, path)
    digest = hashlib.sha256()
    assert read_proto(path, heard=digest.update) == proto
    assert digest.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_empty_file_is_no_model(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(CaseError, match="not an ONNX model"):
        read_proto(tmp_path / "model.onnx")


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("load", [load_network, read_unchecked])
def test_how_much_is_read_is_told_until_the_last_quarter_of_the_nodes(tmp_path, load, external):
    path, told = tmp_path / "model.onnx", []
    kept = {"save_as_external_data": external, "size_threshold": 0}
    onnx.save(models.layer_norm().proto, path, **kept)
    load(path, lambda *step: told.append(step))
    assert {of for _, _, of in told} == {PERCENT}
    shares = [done / total for done, total, _ in told]
    assert shares[0] == 0
    assert 0.2 < shares[-1] < 1
