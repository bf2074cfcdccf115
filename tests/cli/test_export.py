import pytest

from halfwise import api
from halfwise.errors import CaseError
from tests.unit.tensorrt.recipes.made import recipe


def exported(*files, written=(), notes=()):
    return api.Exported(recipe(notes=notes), {name: f"# {name}\n" for name in files}, written)


def test_without_a_place_it_is_printed(call, answer):
    calls = answer("export", exported("build_engine.sh", notes=("Judge it.",)))
    code, out, err = call("export", "runs/demo", "--as", "trtexec")
    assert (code, out) == (0, "# build_engine.sh\n")
    assert err == "note: Judge it.\n"
    ((arguments, options),) = calls
    assert (str(arguments[0]), arguments[1]) == ("runs/demo", "trtexec")
    assert options == {"out": None}


def test_every_option_reaches_the_library(call, answer, tmp_path):
    path = tmp_path / "r.py"
    calls = answer("export", exported("build_engine.py", written=(path,)))
    code, out, _ = call(
        *("export", "r", "--as", "python", "-o", str(path), "--trt-version", "8.6"),
        *("--typing", "weak", "--model", "m.onnx", "--minShapes", "x:1", "--minShapes", "x:2"),
        *("--optShapes", "x:3", "--maxShapes", "x:4"),
    )
    assert (code, out) == (0, f"written: {path}\n")
    ((_, options),) = calls
    assert {k: str(v) for k, v in options.items()} == {
        "out": str(path),
        "trt_version": "8.6",
        "typing": "weak",
        "model": "m.onnx",
        "min_shapes": "['x:1', 'x:2']",
        "opt_shapes": "['x:3']",
        "max_shapes": "['x:4']",
    }


def test_several_files_need_a_folder(call, answer):
    answer("export", exported("build_engine.cpp", "CMakeLists.txt"))
    code, out, err = call("export", "r", "--as", "cpp")
    assert (code, out) == (2, "")
    assert "Name a folder with -o" in err


def test_where_there_is_no_recipe_it_says_why(call, answer):
    answer("export", CaseError("TensorRT 8.6 has no BF16.", "Give --trt-version 9."))
    code, _, err = call("export", "r", "--as", "json")
    assert code == 3
    assert err == "error: TensorRT 8.6 has no BF16.\nhint: Give --trt-version 9.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("export",),
        ("export", "r"),
        ("export", "r", "--as", "onnx"),
        ("export", "r", "--as", "json", "--typing", "none"),
    ],
)
def test_usage(call, arguments):
    assert call(*arguments)[0] == 2
