from halfwise.tools.diagnose.pairing import Variation
from halfwise.tools.diagnose.pairing_report import constant_outputs, foreign, reordered


def test_three_of_the_moved_samples_are_named():
    assert reordered((1, 0, 2), ("a", "b", "c")).endswith(
        "order: a has that of b, b has that of a."
    )
    assert reordered((4, 0, 1, 2, 3), "abcde").endswith("c has that of b and 2 more.")


def test_figures_of_both():
    text = foreign(Variation("y", 2.0, 3.1e-4, 4.6e-4))
    assert "Output y varies by only 0.00031 of its size" in text
    assert "by 0.00046 (RMS)" in text


def test_the_largest_spread_is_told():
    text = constant_outputs([Variation("y", 1.0, 1e-8, 0.0), Variation("z", 1.0, 1e-7, 0.0)])
    assert "y, z varies by no more than 1e−7" in text
