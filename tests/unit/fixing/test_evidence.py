from halfwise.case import Settings
from halfwise.fixing.evidence import gather
from tests import models
from tests.unit.casing import prepare


def evidence(ill, **settings):
    prepared = prepare(ill)
    found = gather(
        prepared.network, prepared.roles, prepared.samples, Settings(**settings), lambda *_: None
    )
    return prepared, found


def test_references_come_with_the_observation():
    prepared, found = evidence(models.small())
    assert len(found.references) == len(prepared.samples)
    for one, other in zip(found.references, prepared.references, strict=True):
        assert all((one[name] == other[name]).all() for name in one)


def test_what_overflows_is_certain():
    _, found = evidence(models.layer_norm())
    assert models.layer_norm().kept <= found.suspected
    assert frozenset().union(*found.certain) <= found.suspected
    assert found.certain


def test_a_healthy_model_raises_no_suspicion():
    _, found = evidence(models.small())
    assert found.guards == ()
    assert found.limits == {}
    assert found.nonfinite == frozenset()


def test_headroom_gives_smaller_ranges():
    _, found = evidence(models.near_the_edge())
    assert found.limits
    _, without = evidence(models.near_the_edge(), headroom=1.0)
    assert without.limits == {}
