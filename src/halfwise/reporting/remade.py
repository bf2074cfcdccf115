"""Words on repairs that a judged model names in its metadata, made and proven again."""

from halfwise.records import Remade
from halfwise.wording import count, listed, number, verb


def remade_line(found: Remade) -> str:
    """Return what a candidate names, and whether that holds; or where it differs unnamed."""
    if found.differs:
        return (
            f"The candidate's graph differs from the original's, first at {found.differs}, and its "
            "metadata names no repairs: only its outputs were compared."
        )
    number_of = len(found.repairs)
    rules = listed(list(dict.fromkeys(repair.rule for repair in found.repairs)))
    named = f"The candidate's metadata names {count(number_of, 'repair')} ({rules})"
    if not found.holds:
        return f"{named}; {verb(number_of, 'it does', 'they do')} not hold."
    if found.proof is None:
        return f"{named}: made again on the original, the same graph; approximate, so not proven."
    samples = count(sum(found.proof.samples.values()), "sample")
    off = f"off by {number(found.proof.repaired)} of an output's largest value"
    shown = "equal bit for bit" if found.proof.equal else off
    return f"{named}: made again on the original, the same graph, and in FP32 {shown} on {samples}."
