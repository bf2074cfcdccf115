"""The module `tensorrt_rtx` of tests: see `tests/fake_tensorrt/__init__.py`."""

from tests.fake_tensorrt.api import *  # noqa: F403
from tests.fake_tensorrt.api import __version__ as __version__
