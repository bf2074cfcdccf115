"""The repairs that a candidate's metadata names: made again on the original, and proven again."""

from collections.abc import Iterator

from halfwise.case import Case, Runtime, Samples
from halfwise.errors import CaseError
from halfwise.fixing.repair import rules
from halfwise.fixing.repair.making import repaired
from halfwise.fixing.repair.metadata import marked
from halfwise.fixing.repair.proof import allowed, is_same, prove
from halfwise.graph.conversion import raise_opset
from halfwise.graph.model import REFUSALS, Network
from halfwise.graph.sameness import first_difference
from halfwise.records import Failure, Proof, Remade, Repair, Verdict
from halfwise.reporting.reasons import with_failures


def remade(case: Case, candidate: Network, *, runtime: Runtime) -> Remade | None:
    """Return what comes of making a candidate's repairs again; None where it names none.

    Those that the original names too, first and in the same order, are in it already.

    Args:
        case: The original and the samples to prove on.
        candidate: As its file has it, in low types.
        runtime: Where both run in FP32.

    Raises:
        CaseError: the metadata of one cannot be read.
    """
    network, named = case.network, marked(candidate.model)
    before = marked(network.model)
    repairs = named[len(before) :] if named[: len(before)] == before else named
    if not repairs:
        return None
    found = Remade(repairs=repairs, holds=False)
    try:
        made = repaired(network, repairs)
        if candidate.opset > made.opset:
            # For BF16 that comes first.
            network = raise_opset(network, candidate.opset)
            made = repaired(network, repairs)
        proof = _proof(network, repairs, made, case.calibration, runtime)
    except (CaseError, *REFUSALS) as error:
        why = error.message if isinstance(error, CaseError) else f"{type(error).__name__}: {error}"
        return found.model_copy(update={"unmade": why})
    differs = first_difference(made, candidate)
    fine = differs is None and (proof is None or is_same(proof))
    return found.model_copy(update={"differs": differs, "proof": proof, "holds": fine})


def _proof(
    network: Network,
    repairs: tuple[Repair, ...],
    made: Network,
    samples: Samples,
    runtime: Runtime,
) -> Proof | None:
    """Prove those that are identities, all together."""
    exact = {rule.name for rule in rules.RULES if rule.identity.exact}
    kept = [repair for repair in repairs if repair.rule in exact]
    if not kept:
        return None
    exactly = made if len(kept) == len(repairs) else repaired(network, kept)
    return prove(network, exactly, samples, samples.select(()), runtime=runtime)


def with_remade(verdict: Verdict, found: Remade | None) -> Verdict:
    """Return the verdict, which fails where the candidate's repairs are not what they claim."""
    failures = [] if found is None or found.holds else list(_failures(found))
    return with_failures(verdict, failures) if failures else verdict


def _failures(found: Remade) -> Iterator[Failure]:
    if found.unmade:
        yield Failure(kind="unmade", names={"why": found.unmade})
    if found.differs is not None:
        yield Failure(kind="other-graph", names={"node": found.differs})
    proof = found.proof
    if proof is not None and not is_same(proof):
        numbers = {"error": proof.repaired, "limit": allowed(proof)}
        broken = {"elements": proof.broken} if proof.broken else {}
        yield Failure(kind="unproven", numbers={**numbers, **broken})
