"""The loss from a quantised model's Q/DQ pairs, as signs of a diagnosis."""

from halfwise.emulation.ort import Session
from halfwise.graph.model import node_name
from halfwise.graph.quantisation.exclusion import excluding
from halfwise.graph.quantisation.pairs import pairs_of
from halfwise.records import QuantisationLoss, Severity, Sign
from halfwise.reporting.quantisation import cause_line, summary_lines
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.verify.quantised import Question, quantisation_loss


def lost(subject: Subject) -> QuantisationLoss | None:
    """Return the effect of the pairs on the outputs; None if none can be left out.

    Also None without the framework's outputs if stored weights have no scale: then nothing is known
    to be right. Right are the framework's outputs, or without these the model's own without its
    pairs. Weights stored as integers stay unchanged.
    """
    network, settings = subject.case.network, subject.settings
    references, pairs = subject.given, pairs_of(network)
    if not pairs:
        return None
    if not references:
        if any(pair.source is None and not pair.has_scales for pair in pairs):
            return None
        every = [node_name(node) for node in network.nodes()]
        session = Session(excluding(network, every, ends=True).model, runtime=settings.runtime)
        references = [session.run(sample) for sample in subject.samples]
    return quantisation_loss(
        Question(
            network=network,
            original=None,
            samples=subject.samples,
            references=references,
            criterion=subject.case.criterion,
            metric=subject.case.metric,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
            right="framework" if subject.given else "floats",
        )
    )


def signs_of_loss(loss: QuantisationLoss) -> list[Sign]:
    """Return a sign for each pair that is a cause, and one for all.

    Faulty pairs are errors; too few bits are a warning, since a diagnosis goes on to what else may
    be wrong.
    """
    if loss.needed == 0:
        return []
    found = [Sign(severity="warning", text=" ".join(summary_lines(loss)))]
    for cause in loss.causes:
        severity: Severity = "warning" if cause.fault == "rounding" else "error"
        text = f"The pair at {cause_line(cause)}"
        found.append(Sign(severity=severity, text=text, nodes=(cause.node, *cause.readers)))
    return found
