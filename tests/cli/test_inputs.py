import json

import numpy as np
import pytest

PREP = """
import numpy as np

def plain(x):
    return (x / 255).astype(np.float32)

def swapped(x):
    return plain(x)[..., ::-1]

def nothing(x):
    return None
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "prep.py").write_text(PREP)
    rows, columns = np.mgrid[:40, :50]
    waves = [np.sin(rows / (3 + i)) * np.cos(columns / (4 + 2 * i)) for i in range(3)]
    photo = np.round(127 + 120 * np.stack(waves, axis=-1))
    np.savez(tmp_path / "raw.npz", x=np.stack([photo, photo[::-1] * 0.9]).round())
    return tmp_path


def test_functions(call, folder):
    options = ("--samples", f"{folder}/raw.npz")
    code, out, _ = call(
        "inputs", "compare", f"{folder}/prep.py:plain", f"{folder}/prep.py:swapped", *options
    )
    assert code == 10
    assert out.startswith("1 difference: channels\n")
    assert "def a_to_b(a):" in out
    code, out, _ = call(
        "inputs", "compare", f"{folder}/prep.py:plain", f"{folder}/prep.py:plain", *options
    )
    assert code == 0
    assert out.startswith("Both pipelines make the same inputs\n")


def test_json_and_code(call, folder):
    code, out, _ = call(
        "inputs",
        "compare",
        f"{folder}/prep.py:plain",
        f"{folder}/prep.py:swapped",
        "--samples",
        f"{folder}/raw.npz",
        "--json",
        "-o",
        f"{folder}/code.py",
    )
    assert code == 10
    (compared,) = json.loads(out)["inputs"]
    assert [d["kind"] for d in compared["differences"]] == ["channels"]
    assert (folder / "code.py").read_text() == compared["code"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("prep.py:plain", "prep.py:plain"), 2),
        (("prep.py:plain", "prep.py:nothing", "--samples", "raw.npz"), 3),
        (("prep.py:plain", "prep.py:none", "--samples", "raw.npz"), 3),
        (("prep.py:plain", "prep.py:plain", "--samples", "none"), 3),
        (("none.npz", "raw.npz"), 3),
        (("raw.npz", "prep.py"), 3),
        (("raw.npz", "raw.npz", "--model", "prep.py"), 3),
        (("raw.npz", "raw.npz", "-o", "prep.py"), 2),
    ],
)
def test_bad_input(call, folder, monkeypatch, arguments, expected):
    monkeypatch.chdir(folder)
    code, out, err = call("inputs", "compare", *arguments)
    assert (code, out) == (expected, "")
    assert "error: " in err
    assert "\nhint: " in err
