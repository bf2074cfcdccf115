from itertools import islice

from halfwise.fixing.devices.ahead import ForeseeingSearch, next_asked
from halfwise.fixing.engines.ddmin import ddmin
from tests.unit.casing import names
from tests.unit.fixing.engines.test_search import ORDER, World, always
from tests.unit.fixing.engines.test_search import names as nodes


def test_what_is_asked_next_is_told_as_if_all_failed():
    def search(passes):
        return ddmin(names("a", "b", "c", "d"), [*"abcd"], lambda keep, _: passes(keep))

    told = list(next_asked(search, {}))
    assert told[:2] == [names("c", "d"), names("a", "b")]
    assert told[2:] == [names(*set("abcd") - {one}) for one in "abcd"]
    # Once one passes, what it leaves is looked into.
    passed = {names("c", "d"): True}
    assert list(islice(next_asked(search, passed), 2)) == [names(), names("d")]
    assert list(next_asked(search, {names("c", "d"): None})) == []


class Ahead(World):
    """Remembers what was expected before each build, and what was built."""

    def begin(self, builds):
        self.expected, self.foreseen, self.built = (), [], []
        search = self.search(left=20, builds=builds)
        search.attempt = self.tried_with
        return ForeseeingSearch.of(search, self.expect)

    def expect(self, sets):
        self.expected = sets

    def tried_with(self, keep, step, terms):
        self.foreseen.append(list(islice(self.expected, 2)))
        self.expected = ()
        self.built.append(keep)
        return self.attempt(keep, step, terms)


def test_a_search_tells_what_it_will_build():
    world = Ahead(always(nodes(5)))
    chosen = world.begin(1).run(nodes(*range(8)))
    assert chosen.best.keep == nodes(5)
    assert len(ORDER) == 8
    # The halves: the first is dropped, and passes; had it failed, the second was to come.
    halves = world.built.index(nodes(4, 5, 6, 7))
    assert world.foreseen[halves][0] == nodes(0, 1, 2, 3)
    failed = [i for i, keep in enumerate(world.built) if keep and not nodes(5) <= keep]
    shrunk = [i for i in failed if world.foreseen[i]]
    assert shrunk
    assert all(world.foreseen[i][0] == world.built[i + 1] for i in shrunk)
    # Never what was built.
    assert all(
        keep not in world.built[: i + 1] for i, told in enumerate(world.foreseen) for keep in told
    )


def test_confirmations_are_told_too():
    world = Ahead(always(nodes()))
    world.begin(4).run(nodes(0))
    confirming = [told for told in world.foreseen if told]
    assert confirming[0] == [nodes(), nodes()]


def test_the_plan_is_that_of_a_search_that_tells_nothing():
    for needed in (nodes(0), nodes(2, 3), nodes(0, 7), nodes(1, 4, 6)):
        plain = World(always(needed)).search(left=30, builds=2).run(nodes(*range(8)))
        told = Ahead(always(needed)).begin(2)
        told.budget.builds = 30
        chosen = told.run(nodes(*range(8)))
        assert [c.best and c.best.keep for c in (plain, chosen)] == [needed, needed]
