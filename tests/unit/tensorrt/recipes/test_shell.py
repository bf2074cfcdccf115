import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.tensorrt.recipes.shell import facts, shell_script
from tests.unit.tensorrt.recipes.made import NASTY, names, recipe, strong, words_of


@given(st.lists(names(without="\0"), min_size=1, max_size=5))
def test_a_shell_gives_back_the_words(words):
    script = shell_script(["a comment"], [["program"], words])
    assert words_of(script) == ["program", *words]


def test_a_real_shell_gives_back_the_words(tmp_path):
    words = [name for name in NASTY if "\0" not in name]
    script = tmp_path / "build.sh"
    script.write_text(shell_script([], [["printf", "%s\\0"], words]), encoding="utf-8", newline="")
    done = subprocess.run(["sh", script], capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == [*words, ""]
    assert [path.name for path in tmp_path.iterdir()] == ["build.sh"]


def test_the_script_runs_where_it_lies(tmp_path):
    folder = tmp_path / "a 'folder'"
    folder.mkdir()
    (folder / "build.sh").write_text(shell_script([], [["pwd"]]), encoding="utf-8")
    done = subprocess.run(["sh", folder / "build.sh"], capture_output=True, check=True, text=True)
    assert done.stdout == f"{folder}\n"


@pytest.mark.parametrize("name", NASTY)
def test_facts_are_lines_whatever_the_names(name):
    lines = facts(recipe(model=name, run=name, notes=(name,)))
    assert all(line.splitlines() in ([line], []) for line in lines)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (recipe(), "weakly typed: FP16 is allowed, 1 node constrained to FP32"),
        (recipe(constraints=()), "weakly typed: FP16 is allowed."),
        (recipe(low=None, constraints=()), "weakly typed: all FP32"),
        (strong(), "strongly typed: the Casts in the ONNX file say what is FP32"),
    ],
)
def test_facts_tell_the_typing(made, words):
    assert words in facts(made)[0]
