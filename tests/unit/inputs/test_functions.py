import sys

import pytest

from halfwise.errors import CaseError, UsageError
from halfwise.user_code import load_function


@pytest.fixture
def write(tmp_path):
    def write(source, name="user.py"):
        path = tmp_path / name
        path.write_text(source)
        return str(path)

    return write


def test_a_function_is_called_like_any_other(write):
    function = load_function(write("def add(a, b=2): return a + b") + ":add")
    assert function(1) == 3
    assert function(1, 5) == 6


def test_a_file_may_import_its_neighbours_and_define_dataclasses(write):
    write("FACTOR = 7", "neighbour_of_user.py")
    source = """
from __future__ import annotations
from dataclasses import dataclass
from neighbour_of_user import FACTOR
@dataclass
class Point:
    x: int = FACTOR
def f(): return Point().x
"""
    before = list(sys.path)
    assert load_function(write(source) + ":f")() == 7
    assert sys.path == before


def test_files_of_one_name_do_not_get_mixed_up(write, tmp_path):
    (tmp_path / "sub").mkdir()
    one = load_function(write("def f(): return 1") + ":f")
    two = load_function(write("def f(): return 2", "sub/user.py") + ":f")
    assert (one(), two()) == (1, 2)


@pytest.mark.parametrize("spec", ["user.py", "user:f", "user.py:", "user.py:a.b", "user.txt:f"])
def test_another_form_is_misuse(spec):
    with pytest.raises(UsageError, match=r"expected file.py:function"):
        load_function(spec)


def test_a_missing_file_or_function_is_an_error(write, tmp_path):
    with pytest.raises(CaseError, match="There is no file"):
        load_function(f"{tmp_path}/absent.py:f")
    path = write("g = 3")
    with pytest.raises(CaseError, match=r"'f' in user.py is missing"):
        load_function(path + ":f")
    with pytest.raises(CaseError, match=r"'g' in user.py is of type int; expected a function"):
        load_function(path + ":g")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:", r"raised SyntaxError: .*\(user.py, line 1\)"),
        ("\nimport not_a_module_at_all", r"ModuleNotFoundError: .*\(user.py, line 2\)"),
        ("\n\nraise SystemExit(3)", r"raised SystemExit: 3 \(user.py, line 3\)"),
    ],
)
def test_errors_while_importing_are_the_users(write, source, message):
    modules = set(sys.modules)
    with pytest.raises(CaseError, match=message):
        load_function(write(source) + ":f")
    assert not {name for name in set(sys.modules) - modules if name.startswith("halfwise_user")}


def test_errors_while_running_name_type_and_line(write):
    source = "import json\ndef f(x):\n    return json.loads(x)\ndef g():\n    assert False\n"
    path = write(source)
    with pytest.raises(CaseError, match=r":f raised JSONDecodeError: .*\(user.py, line 3\)") as e:
        load_function(path + ":f")("{")
    assert isinstance(e.value.__cause__, ValueError)
    with pytest.raises(CaseError, match=r":g raised AssertionError \(user.py, line 5\)"):
        load_function(path + ":g")()


def test_other_arguments_are_an_error(write):
    with pytest.raises(CaseError, match=r"raised TypeError: f\(\) missing 1 required .* 'b'"):
        load_function(write("def f(a, b): ...") + ":f")(1)


@pytest.mark.parametrize("body", ["yield from [1, 2]", "return [1, 2]", "return iter((1, 2))"])
def test_a_stream_is_a_generator_or_a_list(write, body):
    assert list(load_function(write(f"def f():\n    {body}") + ":f").stream()) == [1, 2]


@pytest.mark.parametrize(("body", "kind"), [("pass", "NoneType"), ("return {'x': 1}", "dict")])
def test_a_stream_of_anything_else_is_an_error(write, body, kind):
    with pytest.raises(CaseError, match=f"returned {kind}; expected a generator or a list"):
        list(load_function(write(f"def f():\n    {body}") + ":f").stream())


def test_errors_while_yielding_are_the_users(write):
    stream = load_function(write("def f():\n    yield 1\n    raise KeyError('k')") + ":f").stream()
    assert next(stream) == 1
    with pytest.raises(CaseError, match=r"raised KeyError: 'k' \(user.py, line 3\)"):
        next(stream)
