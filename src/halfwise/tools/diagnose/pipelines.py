"""Rung 1 with two pipelines: what do they do differently, and what does that change?"""

from collections.abc import Iterator

from halfwise.case import Column, Samples
from halfwise.errors import CaseError
from halfwise.metrics.relative import RelativeError
from halfwise.records import InputComparison, Sign
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.preprocessing import code_of, compare_arrays
from halfwise.wording import number

CODE_FILE = "a_to_b.py"
_SAME = 1e-6
"""Relative RMS difference of inputs below which two pipelines agree: FP32 arithmetic in another
order comes to less."""
MAKE_ALIKE = (
    "Make both pipelines do the same (channel order, scale, mean, resize, padding) before anything "
    "else: no precision repairs it."
)
_NAMES = "with A of --inputs and B of --inputs-b"


def pipelines(subject: Subject, others: Samples) -> tuple[list[Sign], tuple[str, ...]]:
    """Return what differs between the inputs of two pipelines, and what to do.

    Where NumPy can turn A into B, the Python for it is written into the run folder.
    """
    inputs, effects = _errors(subject, others)
    signs: list[Sign] = []
    named: list[InputComparison] = []
    for name, error in inputs.items():
        if error.value <= _SAME:
            signs.append(Sign(severity="info", text=f"The two pipelines agree on '{name}'."))
            continue
        worst = subject.samples.ids[error.worst_sample]
        text = (
            f"The two pipelines give different inputs: '{name}' differs by "
            f"{number(100 * error.value)} % (relative RMS, most on {worst}), which changes the "
            f"FP32 outputs: {effects}."
        )
        try:
            found = compare_arrays(Column(subject.samples, name), Column(others, name), name=name)
        except CaseError as refused:
            signs.append(Sign(severity="error", text=f"{text} {refused.message}"))
            continue
        named.append(found)
        what = " ".join(d.sentence for d in found.differences)
        signs.append(Sign(severity="error", text=f"{text} {_NAMES[0].upper()}{_NAMES[1:]}: {what}"))
        signs += _differences(found)
    if any(each.code for each in named):
        (subject.folder / CODE_FILE).write_text(
            code_of({each.name: each.code for each in named}), encoding="utf-8"
        )
    return signs, tuple(_advice(named))


def _errors(subject: Subject, others: Samples) -> tuple[dict[str, RelativeError], str]:
    """Return by how much each input differs, and the outputs in words."""
    inputs: dict[str, RelativeError] = {}
    outputs: dict[str, RelativeError] = {}
    for i, (first, second) in enumerate(zip(subject.samples, others, strict=True)):
        for name, array in first.items():
            inputs.setdefault(name, RelativeError()).add(array, second[name], i)
        given = subject.session.run(second)
        for name, array in subject.references[i].items():
            outputs.setdefault(name, RelativeError()).add(array, given[name], i)
    told = (f"{name} by {number(100 * e.value)} %" for name, e in outputs.items())
    return inputs, ", ".join(told)


def _differences(found: InputComparison) -> Iterator[Sign]:
    for each in found.differences:
        more = f"; {each.evidence}" if each.evidence else ""
        text = f"'{found.name}', {each.kind}: A {each.a}, B {each.b}{more}."
        yield Sign(severity=each.severity, text=text)


def _advice(named: list[InputComparison]) -> Iterator[str]:
    yield MAKE_ALIKE
    coded = [each for each in named if each.code]
    if coded:
        left = max(each.residual_max for each in coded)
        yield (
            f"{CODE_FILE} in the run folder turns A into B, {_NAMES}; at most {number(left)} of an "
            "input's values is left."
        )
    yield "`halfwise inputs compare A B --samples RAW` also tells kernels of a resize apart."
