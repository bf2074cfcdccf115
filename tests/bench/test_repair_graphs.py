"""What is said of drawn graphs that are repaired."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import strategies as st

from bench import repair_graphs
from bench.repair_graphs import Tally, error, examine
from tests import models
from tests.repair_graphs import Drawn


def drawn() -> Drawn:
    ill = models.conv_chain()
    samples = [ill.sample(i) for i in range(3)]
    return Drawn(ill.proto, samples[:2], samples[2:])


def test_a_repaired_model_is_held_to_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    examine(drawn(), tally)
    assert (tally.examined, tally.repaired, tally.compared) == (1, 1, 3)
    assert set(tally.rules) == {"scale"}
    assert tally.worst <= 1
    monkeypatch.setattr(repair_graphs, "LIMIT", 0.0)
    monkeypatch.setattr(repair_graphs, "LUCK", 0.5)
    with pytest.raises(repair_graphs.Unsound, match=r"scale: off by .* on a sample seen, and the"):
        examine(drawn(), tally)


def test_each_piece_has_a_seed_and_what_fails_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Drawn, tally: Tally) -> None:
        tally.examined += 1
        raise repair_graphs.Unsound("off")

    monkeypatch.setattr(repair_graphs, "PIECE", 2)
    monkeypatch.setattr(repair_graphs, "examine", fail)
    monkeypatch.setattr(repair_graphs, "repair_graphs", lambda: st.builds(drawn))
    failed, count, _ = repair_graphs.figures(3, 7, tmp_path)
    files = [tmp_path / f"repair-{piece}.onnx" for piece in (7, 8)]
    told = "; ".join(f"--seed {7 + i}: Unsound: off ({f})" for i, f in enumerate(files))
    assert (failed.measured, failed.reached) == (told, False)
    assert all(onnx.load(f).graph.node for f in files)
    assert isinstance(count.measured, int)
    assert count.measured >= 2
    monkeypatch.setattr(repair_graphs, "examine", lambda *_: None)
    assert repair_graphs.figures(3, 7, tmp_path)[0].reached


def test_errors_are_over_the_largest_value() -> None:
    right = {"y": np.array([4.0, np.inf, np.nan]), "n": np.array([1])}
    assert error(right, {"y": np.array([3.0, np.inf, np.nan]), "n": np.array([2])}) == 0.25
    assert error(right, {"y": np.array([4.0, 1.0, np.nan])}) == np.inf
