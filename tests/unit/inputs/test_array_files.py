import io
import os
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfwise import memory
from halfwise.errors import CaseError
from halfwise.graph.weights import ALIGNMENT
from halfwise.inputs import load_array_files, load_paired_arrays
from halfwise.inputs.array_files import peek_npz, read_npy, read_npz
from halfwise.inputs.fitting import InputSpec, pair_files

X = InputSpec("x", np.dtype(np.float32), ("n", 2))
Y = InputSpec("y", np.dtype(np.int64), ("n",))


def test_npz_keys_are_input_names(tmp_path):
    path = tmp_path / "inputs.npz"
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3)
    np.savez(path, y=y, x=x)
    samples = load_array_files([path], [X, Y], path.name).samples
    assert samples.ids == ("inputs.npz[0]", "inputs.npz[1]", "inputs.npz[2]")
    np.testing.assert_array_equal(samples[1]["x"], x[1:2])
    np.testing.assert_array_equal(samples[1]["y"], y[1:2])


def test_npz_files_are_one_after_the_other(tmp_path):
    files = [tmp_path / f"{name}.npz" for name in "ab"]
    for i, file in enumerate(files):
        np.savez(file, x=np.full((i + 1, 2), i, np.float32))
    samples = load_array_files(files, [X], "folder").samples
    assert samples.ids == ("a.npz", "b.npz[0]", "b.npz[1]")
    assert [s["x"][0, 0] for s in samples] == [0, 1, 1]
    assert samples[0]["x"][0, 0] == 0


def test_npy_files_of_one_input_are_one_after_the_other(tmp_path):
    files = [tmp_path / "1.npy", tmp_path / "2.npy"]
    np.save(files[0], np.zeros((1, 2), np.float32))
    np.save(files[1], np.ones((3, 1, 2), np.float32))
    samples = load_array_files(files, [X], "folder").samples
    assert samples.ids == ("1.npy", "2.npy[0]", "2.npy[1]", "2.npy[2]")


def test_npy_files_of_several_inputs_are_named_after_them(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    np.save(tmp_path / "y.npy", np.arange(4))
    files = [tmp_path / "x.npy", tmp_path / "y.npy"]
    samples = load_array_files(files, [X, Y], "data").samples
    assert samples.ids[3] == "data[3]"
    assert samples[3]["y"] == [3]
    with pytest.raises(CaseError, match="holds only 'x'; expected 'x', 'y'"):
        load_array_files(files[:1], [X, Y], "x.npy")


def test_npy_files_in_sub_folders_are_paired(tmp_path):
    for name, data in (("x", np.ones((1, 2), np.float32)), ("y", np.array([5]))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "001.npy", data)
    folders = {name: [tmp_path / name / "001.npy"] for name in ("x", "y")}
    samples = load_paired_arrays(pair_files(folders), [X, Y]).samples
    assert samples.ids == ("001.npy",)
    assert samples[0]["y"] == [5]


def test_npy_is_mapped_and_not_read(tmp_path):
    path = tmp_path / "big.npy"
    # A sparse file of 64 GB, more than a test machine could afford to read.
    np.lib.format.open_memmap(path, "w+", np.float32, (2**13, 2**21))
    wide = InputSpec("x", np.dtype(np.float32), ("n", 2**21))
    samples = load_array_files([path], [wide], path.name).samples
    assert len(samples) == 2**13
    assert samples[2**12]["x"].shape == (1, 2**21)
    assert type(samples[0]["x"]) is np.ndarray


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_samples_are_aligned_wherever_they_lie(tmp_path, suffix):
    path, x = tmp_path / f"a.{suffix}", np.arange(15, dtype=np.float32).reshape(5, 3)
    (np.save if suffix == "npy" else np.savez)(path, x)
    spec = InputSpec("arr_0", np.dtype(np.float32), ("n", 3))
    samples = load_array_files([path], [spec], path.name).samples
    for sample, row in zip(samples, x, strict=True):
        assert sample["arr_0"].ctypes.data % ALIGNMENT == 0
        np.testing.assert_array_equal(sample["arr_0"], row[np.newaxis])


def test_a_byte_that_differs_is_an_error(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.full((2, 4), 7, np.float32))
    content = bytearray(path.read_bytes())
    content[content.index(np.float32(7).tobytes())] ^= 1
    path.write_bytes(content)
    spec = InputSpec("x", np.dtype(np.float32), (1, 4))
    with pytest.raises(CaseError, match=r"not a readable \.npz file"):
        load_array_files([path], [spec], path.name).samples[0]


def broken(path, kind):
    np.save(path.with_suffix(".npy"), np.ones(1000))
    np.savez(path.with_suffix(".npz"), x=np.ones(1000))
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "text": b"hello", "cut": content[: len(content) // 2]}[kind])


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize("kind", ["empty", "text", "cut"])
def test_broken_files_are_errors(tmp_path, suffix, kind):
    path = tmp_path / f"data.{suffix}"
    broken(path, kind)
    with pytest.raises(CaseError, match=rf"data.{suffix} is not a readable .{suffix} file") as e:
        load_array_files([path], [X], path.name)
    assert "np.save" in e.value.hint


def archive_bytes(save):
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


INTACT = {
    "npy": archive_bytes(lambda f: np.save(f, np.ones((3, 4)))),
    "npz": archive_bytes(lambda f: np.savez(f, x=np.ones((3, 4)))),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(
    suffix=st.sampled_from(["npy", "npz"]),
    place=st.floats(0, 1, exclude_max=True),
    byte=st.sampled_from([*b"'(){},:0123456789-<>|fOUSV tFe\\\x00\xff"]),
)
# A header without its closing bracket once escaped as a TokenError.
@example(suffix="npy", place=INTACT["npy"].index(b"}") / len(INTACT["npy"]), byte=32)
def test_a_garbled_file_is_read_or_refused(tmp_path_factory, suffix, place, byte):
    content = bytearray(INTACT[suffix])
    content[int(place * len(content))] = byte
    path = tmp_path_factory.getbasetemp() / f"garbled.{suffix}"
    path.write_bytes(content)
    for read in (read_npy,) if suffix == "npy" else (read_npz, peek_npz):
        with suppress(CaseError):
            read(path)


def test_object_arrays_are_never_unpickled(tmp_path):
    objects = np.array([{"run": "me"}], dtype=object)
    np.save(tmp_path / "o.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "o.npz", x=objects, allow_pickle=True)
    with pytest.raises(CaseError, match=r"o.npy is an object array \(pickle\)"):
        read_npy(tmp_path / "o.npy")
    with pytest.raises(CaseError, match=r"o.npz, array 'x' is an object array \(pickle\)"):
        read_npz(tmp_path / "o.npz")


def test_a_wrong_suffix_is_an_error(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(1))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(CaseError, match=r"a.npz holds a single array"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.ones(1))
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(CaseError, match=r"b.npy holds a .npz archive"):
        read_npy(tmp_path / "b.npy")


def test_archives_with_other_files_are_errors(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CaseError, match=r"'readme.txt' is not a NumPy array"):
        read_npz(path)


def test_arrays_that_do_not_fit_into_memory_are_errors(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(CaseError, match="does not fit into memory"):
        read_npz(tmp_path / "a.npz")


def test_nan_names_file_and_sample(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([[1, 2], [np.nan, 0]], np.float32))
    samples = load_array_files([path], [X], path.name).samples
    with pytest.raises(CaseError, match=r"a.npy\[1\]: input 'x' holds 1 NaN and 0 inf"):
        samples[1]


def test_an_array_of_another_name_is_told_and_a_file_of_one_array_is_none(tmp_path):
    x = np.ones((3, 2), np.float32)
    np.savez(tmp_path / "a.npz", image=x)
    np.save(tmp_path / "b.npy", x)
    notes = load_array_files([tmp_path / "a.npz"], [X], "a.npz").notes
    (taken,) = [note.facts for note in notes if note.kind == "array"]
    assert taken == {"array": "image", "where": "a.npz", "input": "x"}
    for own in (tmp_path / "b.npy", tmp_path / "x.npz"):
        np.savez(tmp_path / "x.npz", x=x)
        read = load_array_files([own], [X], own.name)
        assert "array" not in {note.kind for note in read.notes}


def test_a_peek_tells_shapes_and_types_and_reads_nothing(tmp_path):
    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=np.zeros((3, 1 << 20), np.float64), y=np.array(["a", "bc"]))
    peeked = peek_npz(path)
    assert {n: (a.shape, a.dtype) for n, a in peeked.items()} == {
        "x": ((3, 1 << 20), np.dtype(np.float64)),
        "y": ((2,), np.dtype("<U2")),
    }
    assert peeked["x"].strides == (0, 0)
    assert read_npz(path, {"y"}).keys() == {"y"}


def bomb(path, shape, header=b""):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text
        archive.writestr("x.npy", header or start)
    return path


def test_what_an_archive_holds_is_known_before_it_is_unpacked(tmp_path, monkeypatch):
    specs = [InputSpec("x", np.dtype(np.float32), (1, 8))]
    path = bomb(tmp_path / "d.npz", (1 << 40, 1, 8))
    with pytest.raises(CaseError, match=r"holds 1,099,511,627,776 samples"):
        load_array_files([path], specs, "d")
    bomb(path, (1 << 70, 1, 8))
    with pytest.raises(CaseError, match="not a readable"):
        load_array_files([path], specs, "d")
    bomb(path, (), b"\x93NUMPY\x02\0" + b"\xff" * 4)
    with pytest.raises(CaseError, match=r"not a readable \.npz file"):
        load_array_files([path], specs, "d")
    np.savez_compressed(path, x=np.zeros((1 << 16, 1, 8), np.float32))
    monkeypatch.setattr(memory, "available", lambda: 100)
    with pytest.raises(CaseError, match=r"unpacked, needs 2 MiB of memory, but only 100 bytes"):
        load_array_files([path], specs, "d").samples[0]


def test_a_pipe_is_no_array_file(tmp_path):
    path = tmp_path / "d.npz"
    os.mkfifo(path)
    for read in (read_npz, peek_npz, read_npy):
        with pytest.raises(CaseError, match="is a named pipe, not a file"):
            read(path)
