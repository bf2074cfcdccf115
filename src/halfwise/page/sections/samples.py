"""The judged samples, worst first, with those that can be viewed."""

from halfwise.page.data import Data
from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.wording import dimensions


def samples(stored: Stored) -> Section | None:
    """Return the section of samples; None if the run has no results per sample."""
    verdict, evidence = stored.run.verdict, stored.evidence
    shown = evidence.previews if evidence is not None else ()
    excesses = dict(zip(verdict.samples, verdict.excesses, strict=False))
    if not (shown or excesses):
        return None
    worst = sorted(excesses, key=lambda name: -excesses[name])
    previews: list[Data] = [
        {
            **one.model_dump(exclude={"shape"}),
            "shape": dimensions(one.shape),
            "excess": excesses.get(one.sample),
        }
        for one in shown
    ]
    data: Data = {
        "over": "allowed" if verdict.metric is None else "the default tolerance",
        "rows": [[name, excesses[name]] for name in worst],
        "previews": previews,
    }
    return Section("samples", "Worst samples", data)
