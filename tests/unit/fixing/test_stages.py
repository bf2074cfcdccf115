import pytest

from halfwise.fixing.loop import Stages
from halfwise.progress import Silent


class Told(Silent):
    def __init__(self):
        self.names: list[str] = []

    def stage(self, name, total=None):  # noqa: ARG002
        self.names.append(name)


def test_a_stage_is_told_where_it_begins_and_counted_each_time_and_when_it_fails():
    told = Told()
    stages = Stages(told)
    for name in ("search", "judge", "search"):
        with stages(name):
            pass
    before = stages.seconds["search"]
    with pytest.raises(ValueError, match="no"), stages("search"):
        raise ValueError("no")
    assert told.names == ["search", "judge", "search"]
    assert stages.seconds["search"] >= before >= 0
    assert list(stages.seconds) == ["search", "judge"]
