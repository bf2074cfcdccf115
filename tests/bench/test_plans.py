"""The bench of plans: what a search took, and where it is ended."""

import json

from bench import plans
from bench.runs import Workbench


def test_evaluations_of_the_search_are_counted_and_end_it(tmp_path):
    by_name = {task.name: task for task in plans.tasks(Workbench(tmp_path))}
    deep = by_name["deep"]
    whole = plans.plan(deep)
    assert whole.passed
    assert whole.minimal
    ended = plans.plan(plans.Task(deep.name, deep.model, deep.inputs, deep.options, cap=6))
    assert not ended.minimal
    assert ended.evaluations < whole.evaluations
    assert ended.kept >= whole.kept
    known = json.loads(plans.BEFORE.read_text("utf-8"))
    assert known.keys() >= by_name.keys()
    assert plans.Found(**known["deep"]).kept == whole.kept
