from tests.unit.linting.said import said


def test_masks_by_their_size(tmp_path):
    start = "the mask constant_0 = "
    assert said("lowest_mask", tmp_path).startswith(f"{start}-3.4e+38 is -inf or -65504 in FP16")
    assert said("mask_at_the_edge", tmp_path).startswith(f"{start}-6.55e+04 is -65504 in FP16")
    assert "NaN in any precision" in said("infinite_mask", tmp_path)
