"""Builds, engines and what low precision explains."""

import pytest

from halfwise.records import BuildConfig, WorkerInfo, replace


def test_without_wishes_the_builder_decides_and_tf32_is_off():
    plain = BuildConfig(model_sha256="0", typing="weak")
    assert (plain.low, plain.tf32, plain.keep) == (None, False, ())
    assert (plain.workspace_bytes, plain.optimization_level, plain.tactic_sources) == (None,) * 3


@pytest.mark.parametrize(
    ("value", "told"), [("0", "disables TF32 in every engine"), ("1", "may enable TF32 in every")]
)
def test_what_an_override_of_tf32_means(value, told):
    info = WorkerInfo(name="w", command=("python3",))
    assert info.tf32_remark == ""
    assert told in replace(info, tf32_override=value).tf32_remark
