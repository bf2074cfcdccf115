import subprocess
import sys

CODE = """
import sys
import halfwise.fixing.command
import onnx_ir
unused = ("sympy.core", "scipy", "onnx.reference", "numpy.random.mtrand")
ours = ("halfwise.reporting.causes", "halfwise.targets.rtx", "halfwise.page")
print([name for name in (*unused, *ours) if name in sys.modules])
import scipy.optimize, scipy.sparse.csgraph
print("numpy.testing._private" in sys.modules, "scipy.spatial.distance" in sys.modules)
print(onnx_ir.SymbolicDim("n") + 1, "sympy.core" in sys.modules)
import sympy
print(sympy.Symbol("m") + 2)
"""


def test_what_is_slow_to_load_is_loaded_when_it_is_used():
    """Should anything use it while it is imported, every command waits for it and holds it."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "False False", "n + 1 True", "m + 2"]
