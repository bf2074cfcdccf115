import json
import math

import pytest

from halfwise.records import SCHEMA_VERSION, Baseline, Change, Cost, Provenance
from tests.unit.records.journey import any_of, assert_unchanged, drawn
from tests.unit.reporting import runs


@pytest.mark.parametrize("kind", [Cost, Provenance])
@drawn
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_a_whole_run_goes_to_json_and_back():
    assert_unchanged(runs.run())
    assert_unchanged(runs.verification())
    broken = runs.output_error(max_abs=math.inf, snr_db=-math.inf, cosine=math.nan)
    assert_unchanged(runs.run(verdict=runs.verdict(outputs={"y": broken})))


def test_the_fields_that_others_read():
    content = json.loads(runs.run().model_dump_json())
    assert content["schema_version"] == SCHEMA_VERSION == 1
    assert content["plan"]["keep"][0].keys() >= {"node", "op", "precision", "reason", "guard"}
    assert content["plan"].keys() >= {"constants", "unsupported", "minimal"}
    assert content["verdict"].keys() >= {
        *("passed", "level", "outputs", "worst_sample", "intermediate_nonfinite", "metric"),
    }
    assert content["verdict"]["outputs"]["logits"].keys() >= {
        *("max_abs", "rel_max", "mean_abs", "median_abs", "snr_db", "cosine", "nonfinite"),
    }
    assert content["cost"].keys() >= {"evaluations", "seconds", "peak_rss_bytes"}
    assert content["provenance"]


def test_a_run_is_a_fix_or_a_verification():
    with pytest.raises(ValueError, match="kind"):
        runs.run(kind="guess")


@pytest.mark.parametrize("kind", [Baseline, Change])
@drawn
def test_a_comparison_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_one_figure_that_got_worse_is_enough():
    fine = Change(kind="cost", before=1.0, now=1.0, limit=1.0, passed=True)
    found = Baseline(run="r", date="d", same_samples=True, changes=(fine,))
    assert found.passed
    worse = fine.model_copy(update={"passed": False})
    assert not found.model_copy(update={"changes": (fine, worse)}).passed
