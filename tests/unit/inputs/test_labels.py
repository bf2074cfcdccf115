import json

import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.inputs.array_files import load_labels


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("l.json", '[1, "a", [2, 3]]', (1, "a", [2, 3])),
        ("l.json", "\ufeff[3, 1.5, null]", (3, 1.5, None)),
    ],
)
def test_labels_in_json(tmp_path, name, text, labels):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert load_labels(path, 3) == labels
    assert [type(label) for label in load_labels(path, 3)] == [type(label) for label in labels]


def test_array_labels(tmp_path):
    np.save(tmp_path / "l.npy", np.array([1, 2]))
    np.save(tmp_path / "rows.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    labels = load_labels(tmp_path / "l.npy", 2)
    assert labels == (1, 2)
    assert type(labels[0]) is int
    np.testing.assert_array_equal(load_labels(tmp_path / "rows.npy", 2)[1], [3, 4])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.json", b"[1, 2]", "found 2 for 3 samples"),
        ("l.json", b"[1, 2", "found broken JSON"),
        ("l.json", b"[" * 100_000, "found broken JSON"),
        ("l.json", b"[" + b"9" * 10_000 + b"]", "found broken JSON"),
        ("l.json", json.dumps({"a": 1}).encode(), "found a dict; expected a list"),
        ("l.json", b"\xff\xfe1", "found broken JSON"),
        ("l.npy", b"hello", "not a readable .npy file"),
        ("l.txt", b"3\n1\n4\n", "found the suffix '.txt'; expected .json or .npy"),
    ],
)
def test_bad_labels_are_errors(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CaseError, match=message) as caught:
        load_labels(tmp_path / name, 3)
    assert caught.value.hint


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(CaseError, match="There is no file"):
        load_labels(tmp_path / "l.txt", 3)


def test_labels_are_an_array_with_an_axis(tmp_path):
    np.save(tmp_path / "scalar.npy", np.float32(1))
    with pytest.raises(CaseError, match="found a scalar"):
        load_labels(tmp_path / "scalar.npy", 1)
