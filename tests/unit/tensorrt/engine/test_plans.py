import pytest

from halfwise.errors import CaseError
from halfwise.tensorrt.engine.plans import demand_engine, is_engine


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.bin", b"ftrt\0\0", True),
        ("model.engine", b"anything", True),
        ("model.PLAN", b"", True),
        ("model.trt", b"x", True),
        ("model.onnx", b"\x08\x08", False),
        ("model.onnx", b"", False),
        ("outputs.json", b"{", False),
    ],
)
def test_engines_by_content_else_by_name(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert is_engine(tmp_path / name) == expected


def test_what_is_not_there(tmp_path):
    assert is_engine(tmp_path / "absent.engine")
    assert not is_engine(tmp_path / "absent.onnx")
    (tmp_path / "folder.engine").mkdir()
    assert not is_engine(tmp_path / "folder.engine")
    with pytest.raises(CaseError, match=r"absent\.engine cannot be read: No such file"):
        demand_engine(tmp_path / "absent.engine")


def test_files_that_hold_more_or_nothing(tmp_path):
    path = tmp_path / "e.engine"
    path.write_bytes(b"ftrt{")
    assert demand_engine(path) == path
    path.write_bytes(b"")
    with pytest.raises(CaseError, match="is empty"):
        demand_engine(path)
    path.write_bytes(b"\x02\0\0\0{}ftrt")
    with pytest.raises(CaseError, match="2 bytes of Ultralytics' metadata") as told:
        demand_engine(path)
    # `tail -c +7` begins with the seventh byte.
    assert "tail -c +7" in told.value.hint
    assert path.read_bytes()[6:] == b"ftrt"
