"""Compile a C++ recipe against the declarations of a version of TensorRT."""

import shutil
import subprocess
from pathlib import Path

import pytest

DECLARATIONS = Path(__file__).resolve().parents[2] / "tensorrt_declarations"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def compile_(*words):
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def declared(version):
    """Return the options that make the declarations those of a version."""
    major, minor = version.split(".")[:2]
    defines = (f"-DNV_TENSORRT_MAJOR={major}", f"-DNV_TENSORRT_MINOR={minor}")
    return (*defines, "-isystem", DECLARATIONS)
