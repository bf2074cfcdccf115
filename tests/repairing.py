"""What rules of repair read and make: evidence, the repaired network, outputs of both."""

from collections.abc import Iterable, Sequence

import numpy as np

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.repair.making import Rule
from halfwise.formats import FP16, Format
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto, normalise
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.observing import DETAIL_SAMPLES
from halfwise.observing.reference import Observer
from halfwise.records import Repair
from tests.models import Ill

Arrays = dict[str, np.ndarray]


def samples_of(ill: Ill) -> list[Arrays]:
    """Return the samples one by one."""
    return [ill.sample(i) for i in range(len(next(iter(ill.inputs.values()))))]


def evidence(network: Network, samples: Sequence[Arrays], fmt: Format = FP16) -> Attribution:
    """Return what the FP32 reference shows on the samples."""
    roles = roles_of(network)
    ids = tuple(f"s{i}" for i in range(len(samples)))
    observer = Observer(network, Samples(ids, samples.__getitem__), fmt, roles)
    observer.look(DETAIL_SAMPLES)
    return Attribution(network, roles, observer.records(), fmt, 2.0, "fp32")


def proposed(network: Network, samples: Sequence[Arrays], *rules: Rule) -> list[Repair]:
    """Return what rules propose."""
    seen = evidence(network, samples)
    return [repair for rule in rules for repair in rule.propose(seen)]


def repaired(network: Network, repairs: Iterable[Repair], *rules: Rule) -> Network:
    """Return a network with repairs made, each read back from its record."""
    by_name = {rule.name: rule for rule in rules}
    model = network.copy()
    for repair in repairs:
        by_name[repair.rule].apply(model, Repair.from_json(repair.to_json()))
    return normalise(model, path=None, sha256=network.sha256)


def repair(ill: Ill, *rules: Rule) -> tuple[Network, Network, list[Repair]]:
    """Return a model's network, what rules make of it on its samples, and how."""
    network = network_from_proto(ill.proto)
    repairs = proposed(network, samples_of(ill), *rules)
    return network, repaired(network, repairs, *rules), repairs


def run(network: Network, sample: Arrays) -> Arrays:
    """Return the outputs in FP32."""
    return dict(Session(network.copy()).run(sample))


def run_all(network: Network, samples: Sequence[Arrays]) -> list[Arrays]:
    """Return the outputs in FP32 of each sample."""
    session = Session(network.copy())
    return [dict(session.run(sample)) for sample in samples]


def run_low(network: Network, sample: Arrays) -> Arrays:
    """Return the outputs with everything in FP16."""
    low = rewrite(network, roles_of(network), frozenset(), FP16).model
    return dict(Session(emulate_typed(low)).run(sample))


def error(expected: Arrays, actual: Arrays) -> float:
    """Return the largest error over the largest magnitude of its output, inf where not finite."""
    worst = 0.0
    for name, array in expected.items():
        wide, other = array.astype(np.float64), actual[name].astype(np.float64)
        unlike = np.isfinite(wide) != np.isfinite(other)
        with np.errstate(invalid="ignore"):
            apart = np.abs(wide - other)[np.isfinite(wide) & np.isfinite(other)]
        largest = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
        worst = max(worst, np.inf if unlike.any() else apart.max(initial=0.0) / (largest or 1.0))
    return float(worst)


def mended(
    network: Network, samples: Sequence[Arrays], rules: Sequence[Rule]
) -> tuple[Network, list[Repair]]:
    """Return a network with all that rules propose, each asked of what the others left."""
    made: list[Repair] = []
    seen = evidence(network, samples)
    for rule in rules:
        repairs = list(rule.propose(seen))
        if repairs:
            made += repairs
            network = repaired(network, repairs, rule)
            seen = evidence(network, samples)
    return network, made
