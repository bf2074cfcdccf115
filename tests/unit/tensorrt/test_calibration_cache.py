import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.tensorrt.calibration_cache import read_cache
from tests.unit.tensorrt.caches import written

floats = st.floats(0, 2**66, width=32)


@given(st.dictionaries(st.text("ab:/._ ()*0", min_size=1, max_size=9).map(str.strip), floats))
def test_what_was_written_is_read(tmp_path_factory, scales):
    scales = {name: scale for name, scale in scales.items() if name} or {"x": 1.0}
    path = tmp_path_factory.mktemp("cache") / "c"
    written(path, scales)
    cache = read_cache(path)
    assert (cache.version, cache.calibrator) == ("8.6.1", "EntropyCalibration2")
    assert cache.scales == {name: np.float32(scale) for name, scale in scales.items()}


@pytest.mark.parametrize(
    ("digits", "version"), [("7103", "7.1.3"), ("8601", "8.6.1"), ("101401", "10.14.1")]
)
def test_versions(tmp_path, digits, version):
    (tmp_path / "c").write_text(f"TRT-{digits}-MinMaxCalibration\nx: 3c010204\n")
    cache = read_cache(tmp_path / "c")
    assert (cache.version, cache.calibrator) == (version, "MinMaxCalibration")
    assert cache.scales["x"] == pytest.approx(1 / 127, rel=1e-6)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "its first line is not of the form"),
        (b"x 3.5\n", "its first line is not of the form"),
        (b"\xff\xfe\x00", "it is not text"),
        (b"TRT-8601-EntropyCalibration2\n", "holds no scale"),
        (b"TRT-8601-EntropyCalibration2\nx: 3c010a14\ny: zz\n", "line 3 is not a tensor"),
        (b"TRT-8601-EntropyCalibration2\nx: 3c010a14\ny", "truncated or damaged: line 3"),
    ],
)
def test_what_is_no_cache(tmp_path, content, why):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(CaseError, match=why):
        read_cache(tmp_path / "c")


def test_what_is_no_file(tmp_path):
    with pytest.raises(CaseError, match="is a folder, not a file"):
        read_cache(tmp_path)
