"""What a worker can build."""

import pytest

from halfwise.errors import UsageError
from halfwise.formats import BF16, FP16
from halfwise.records import WorkerInfo
from halfwise.tensorrt.versions import regime


def worker(version: str, *typing: str, capability: str = "9.0") -> WorkerInfo:
    return WorkerInfo(
        name="w",
        command=("python3",),
        tensorrt=version,
        gpu="GPU",
        compute_capability=capability,
        typing=typing,  # type: ignore[arg-type]
    )


def test_the_version_decides_unless_the_user_does():
    assert regime(worker("8.6.1", "weak"), None, FP16) == "weak"
    assert regime(worker("10.0.1", "strong", "weak"), None, FP16) == "strong"
    assert regime(worker("10.0.1", "strong", "weak"), "weak", FP16) == "weak"


def test_a_regime_that_the_version_lacks():
    with pytest.raises(UsageError, match=r"TensorRT 8\.6\.1 has no strong typing") as told:
        regime(worker("8.6.1", "weak"), "strong", FP16)
    assert "--typing weak" in told.value.hint
    with pytest.raises(UsageError, match="no weak typing"):
        regime(worker("11.4.0", "strong"), "weak", FP16)


def test_bf16_needs_a_version_and_a_gpu():
    assert regime(worker("9.3.0", "weak"), None, BF16) == "weak"
    with pytest.raises(UsageError, match=r"TensorRT 8\.6\.1 has no BF16"):
        regime(worker("8.6.1", "weak"), None, BF16)
    with pytest.raises(UsageError, match=r"compute capability 7\.5\) has no BF16"):
        regime(worker("10.0.1", "strong", capability="7.5"), None, BF16)


def test_bf16_beside_fp16_takes_strong_typing():
    assert regime(worker("10.0.1", "strong", "weak"), None, FP16, beside=True) == "strong"
    with pytest.raises(UsageError, match="builder alone chooses"):
        regime(worker("10.0.1", "strong", "weak"), "weak", FP16, beside=True)
    with pytest.raises(UsageError, match="has no BF16") as told:
        regime(worker("8.6.1", "weak"), None, FP16, beside=True)
    assert "no --allow bf16" in told.value.hint
