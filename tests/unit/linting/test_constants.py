from tests.faults import FAULTS, linted
from tests.unit.linting.said import said


def test_numbers(tmp_path):
    assert said("huge_weights", tmp_path) == (
        "32 of the 32 values of constant_0 are beyond FP16's 65504, up to 1e+05"
    )
    assert said("tiny_weights", tmp_path).startswith(
        "28 of the 32 non-zero values of constant_0 are below FP16's smallest normal number, "
    )
    assert said("loud_channels", tmp_path) == (
        "3 of 3 variances, from 1e+09 to 1e+09, lose their scale in FP16"
    )


def test_a_batch_norm_is_to_be_folded(tmp_path):
    fault = next(f for f in FAULTS if f.name == "loud_channels")
    (finding,) = linted(fault.make(True), tmp_path).findings
    assert finding.fix.startswith("Fold the BatchNormalization into a Mul and an Add")
