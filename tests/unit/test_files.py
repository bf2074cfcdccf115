import os
import socket
from pathlib import Path

import pytest

from halfwise.files import is_regular, open_regular, read_text


def test_regular_files_are_read_through_links_too(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "b"
    file.write_bytes("héllo".encode())
    link.symlink_to(file)
    assert is_regular(file)
    assert is_regular(link)
    assert read_text(link) == "héllo"
    with open_regular(file) as stream:
        assert stream.read() == file.read_bytes()


def test_nothing_else_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, link, circle, device = (tmp_path / name for name in ("pipe", "link", "circle", "device"))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    circle.symlink_to(circle)
    device.symlink_to("/dev/null")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        refused = {
            pipe: "a named pipe",
            link: "a named pipe",
            device: "a device",
            tmp_path / "socket": "No such device",
            tmp_path: "a folder",
            circle: "symbolic links",
            tmp_path / "missing": "No such file",
            tmp_path / ("a" * 5000): "too long",
            Path("a\0b"): "contains NUL",
        }
        for path, why in refused.items():
            assert not is_regular(path)
            with pytest.raises(OSError, match=r".") as caught:
                open_regular(path)
            assert why in (caught.value.strerror or "")


def test_a_text_has_a_largest_size_that_is_known_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(OSError, match=r".") as caught:
        read_text(file)
    assert caught.value.strerror == "it has 1,099,511,627,776 bytes; at most 268,435,456 are read"
    os.truncate(file, 3)
    assert read_text(file, at_most=3) == "\0\0\0"
