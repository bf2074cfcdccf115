"""Redo the repairs in a candidate's metadata on the original, and prove them again."""

from collections.abc import Iterator

from halfwise.case import Case, Runtime
from halfwise.emulation.budget import sized
from halfwise.errors import CaseError
from halfwise.fixing.repair.making import further, repaired_at, with_readable
from halfwise.fixing.repair.proof import allowed, is_same, prove
from halfwise.graph.bodies import first_difference
from halfwise.graph.conversion import raise_opset
from halfwise.graph.excluding import excluding
from halfwise.graph.loading import REFUSALS
from halfwise.graph.model import Network
from halfwise.graph.quantised import quantised_nodes
from halfwise.options.loading import nodes_of
from halfwise.progress import Silent, Watcher
from halfwise.records import Failure, Proof, Remade, Verdict
from halfwise.reporting.reasons import with_failures


def remade(
    case: Case, candidate: Network, *, runtime: Runtime, watcher: Watcher | None = None
) -> Remade | None:
    """Redo a candidate's repairs; None if it needs none.

    One that names none but differs in more than types gives no verdict: it may be any conversion.

    Leading repairs that the original lists in the same order are already in it.

    Args:
        case: The original and the samples for the proof.
        candidate: As in its file, in low types.
        runtime: Where both run in FP32.
        watcher: Receives the stage `proof` if there is one.

    Raises:
        CaseError: the candidate's metadata cannot be read.
    """
    network, _ = with_readable(case.network)  # fix leaves the same out of its files
    repairs = further(candidate.model, network.model)
    if not repairs:
        differs = _unnamed(network, candidate)
        return Remade(repairs=(), differs=differs) if differs else None
    (watcher or Silent()).stage("proof")
    try:
        with sized("proof", nodes_of(network)):
            network, made = repaired_at(network, repairs, candidate.opset)
            unseen = case.calibration.select(())
            proof = prove(network, made, case.calibration, unseen, runtime=runtime)
    except (CaseError, *REFUSALS) as error:
        why = error.message if isinstance(error, CaseError) else f"{type(error).__name__}: {error}"
        return Remade(repairs=repairs, failures=(Failure(kind="unmade", names={"why": why}),))
    floats = excluding(candidate, quantised_nodes(candidate), made)
    failures = tuple(_failures(first_difference(made, floats), proof))
    return Remade(repairs=repairs, proof=proof, failures=failures)


def _unnamed(network: Network, candidate: Network) -> str | None:
    """Return where a candidate without repairs differs, at its opset; None if nowhere."""
    candidate = excluding(candidate, quantised_nodes(candidate), network)
    differs = first_difference(network, candidate)
    if differs is None or network.opset >= candidate.opset:
        return differs
    try:
        return first_difference(raise_opset(network, candidate.opset), candidate)
    except (CaseError, *REFUSALS):
        return differs


def _failures(differs: str | None, proof: Proof) -> Iterator[Failure]:
    if differs is not None:
        yield Failure(kind="other-graph", names={"node": differs})
    if not is_same(proof):
        numbers = {"error": proof.repaired, "limit": allowed(proof)}
        elements = {"elements": proof.broken, "mended": proof.mended}
        told = {name: number for name, number in elements.items() if number}
        yield Failure(kind="unproven", numbers={**numbers, **told})


def with_remade(verdict: Verdict, found: Remade | None) -> Verdict:
    """Return the verdict; it fails if the candidate's repairs are not what they claim."""
    return with_failures(verdict, found.failures) if found and found.failures else verdict
