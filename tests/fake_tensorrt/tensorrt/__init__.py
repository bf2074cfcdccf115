"""The module `tensorrt` of tests: see `tests/fake_tensorrt/__init__.py`."""

from tests.fake_tensorrt.faults import Failure, strike

try:
    strike("import")
except Failure as failure:
    raise ImportError(str(failure)) from failure

# After the faults, which do not wait for what takes long.
from tests.fake_tensorrt.api import *  # noqa: F403
from tests.fake_tensorrt.api import __version__ as __version__
