"""Words on repairs named in a judged model's metadata, made and proven again."""

from halfwise.records import Remade
from halfwise.wording import count, listed, number, verb


def remade_line(found: Remade) -> str:
    """Return the repairs that a candidate names, and whether they hold; or unnamed differences."""
    if found.differs:
        return (
            f"The candidate's graph differs from the original, first at {found.differs}, and its "
            "metadata lists no repairs: only outputs were compared."
        )
    number_of = len(found.repairs)
    rules = listed(list(dict.fromkeys(repair.rule for repair in found.repairs)))
    named = f"The candidate's metadata lists {count(number_of, 'repair')} ({rules})"
    if not found.holds:
        return f"{named}; {verb(number_of, 'it does', 'they do')} not hold."
    same = f"repeated on the original, {verb(number_of, 'it gives', 'they give')} the same graph"
    if found.proof is None:
        return f"{named}: {same}; approximate, so not proven."
    samples = count(sum(found.proof.samples.values()), "sample")
    off = f"off by {number(found.proof.repaired)} of an output's largest value"
    shown = "equal bit for bit" if found.proof.equal else off
    return f"{named}: {same}, in FP32 {shown} on {samples}."
