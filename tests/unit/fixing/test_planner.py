import pytest

from halfwise.errors import UsageError
from halfwise.fixing.evidence import gather
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.rules import Start
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import Scoring
from halfwise.graph.roles import roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import Remark
from halfwise.reporting.remarks import remark
from tests import models
from tests.models import accumulation
from tests.unit.casing import names


class Listener(Silent):
    def __init__(self):
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def planner(ill, **options):
    request = understand(dict(ill.inputs), options)
    case = load_case(ill.proto, request.data, request.criterion)
    roles = roles_of(case.network)
    made = Planner(case, request.settings, roles, Listener())
    made.begin(gather(case.network, roles, case.calibration, request.settings, lambda *_: None))
    return made


def scoring_of(made: Planner) -> Scoring:
    """Return what measures plans, with the searched samples as unseen ones."""
    return Scoring(made, HeldOut(made, made.trials.samples, made.trials.references, Silent()))


def test_the_expected_time_is_told_before_the_search():
    made = planner(models.layer_norm())
    assert "the search alone" in made.watcher.notes[0]
    healthy = planner(models.small(), budget=1e6, time_budget=7)
    assert "quick if FP16 is fine" in healthy.watcher.notes[0]
    assert "at most what the time budget of 7 s leaves" in healthy.watcher.notes[0]
    assert "while all of --budget inferences=1000000 may take" in healthy.watcher.notes[0]
    (told,) = planner(models.small(), time_budget=1e9).watcher.notes
    assert "fine as it is, at most about" in told


def test_the_model_is_that_of_the_assignment():
    made = planner(models.layer_norm())
    found = made.find(frozenset())
    assert found.kept == models.layer_norm().kept
    rewritten, placed = made.rewrite(found.kept)
    dtypes = {n.name: n.outputs[0].dtype.name for n in rewritten.model.graph}
    names = {n.name for n in made.case.network.nodes()}
    assert {n for n in names if dtypes[n] == "FLOAT"} == placed == found.kept


def test_samples_that_join_change_the_emulation_where_ranges_grow():
    made = planner(models.small())
    runner = made.trials.runner
    samples = made.case.heldout
    evidence = made.evidence
    made.join(samples, evidence.references[: len(samples)], evidence)
    assert made.trials.runner is runner
    name = evidence.observations.tensors[0].tensor
    made.join(
        samples,
        evidence.references[: len(samples)],
        type(evidence)(evidence.observations, evidence.references, evidence.guards, {name: 1.0}),
    )
    assert made.trials.runner is not runner


def test_rules_are_applied_before_anything_runs():
    with pytest.raises(UsageError, match="matches no node"):
        planner(models.small(), keep=("nothing",))


def test_a_starting_plan_is_tried_and_told():
    made = planner(models.layer_norm(), lower=("gamma",))
    kept = names("gamma", *models.layer_norm().kept)
    found = Remark(kind="start", names={"date": "1 May"})
    made.start_from(Start(kept, found))
    told = "the plan comes from the run of 1 May; the starting plan keeps 4 nodes and passes"
    assert remark(made.start.note) == made.watcher.notes[-1] == told
    assert made.find(frozenset()).kept == models.layer_norm().kept
    made = planner(models.layer_norm())
    made.start_from(Start(frozenset(), found))
    assert remark(made.start.note).endswith("keeps 0 nodes and fails")


def test_trials_with_fusion_have_no_headroom_and_the_same_samples():
    made = planner(models.near_the_edge())
    fused = made.engine_trials()
    assert made.evidence.limits
    assert fused.excess(names()) < 1 < made.trials.excess(names())
    assert fused.samples is made.trials.samples
    assert fused.evaluations == 1


def test_products_alone_may_be_summed_in_the_low_format():
    product, total = planner(accumulation.long_product()), planner(accumulation.long_sum())
    assert product.engine_trials().excess(names()) < 1
    assert product.engine_trials(accumulate="products").excess(names()) > 1
    assert product.engine_trials(accumulate="products").excess(names("matmul")) < 1
    same = total.engine_trials().excess(names())
    assert total.engine_trials(accumulate="products").excess(names()) == same < 1
    assert total.engine_trials(accumulate="fp16").excess(names()) > 1
