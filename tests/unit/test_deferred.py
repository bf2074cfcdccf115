import subprocess
import sys

CODE = """
import sys
from halfwise import cli
cli.defer_unused()
import halfwise.fixing.command
import onnx_ir
for name in ("sympy.core", "scipy.optimize", "onnx.reference"):
    print(name in sys.modules)
print(onnx_ir.SymbolicDim("n") + 1, "sympy.core" in sys.modules)
import sympy
print(sympy.Symbol("m") + 2)
"""


def test_what_is_slow_to_load_is_loaded_when_it_is_used():
    """Should anything use it while it is imported, every command waits for it and holds it."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [*["False"] * 3, "n + 1 True", "m + 2"]
