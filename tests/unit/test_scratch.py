import pytest

from halfwise.scratch import scratch


def test_a_folder_goes_with_its_block(tmp_path):
    with scratch(tmp_path) as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_goes_when_the_block_fails(tmp_path):
    with pytest.raises(FileNotFoundError), scratch(tmp_path) as folder:
        (folder / "missing").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_moved_stays(tmp_path):
    (tmp_path / "new").mkdir()
    with scratch(tmp_path) as folder:
        folder.rename(tmp_path / "moved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "new"]
    assert (tmp_path / "moved").stat().st_mode == (tmp_path / "new").stat().st_mode
