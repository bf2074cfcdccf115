"""What was wrong, where and why, with the tensor's histogram and the line of code."""

from collections.abc import Iterable

from halfwise.page.data import Data
from halfwise.page.section import Section
from halfwise.page.sources import Places
from halfwise.page.stored import Stored
from halfwise.records import Detail, Observation, TensorName
from halfwise.reporting.causes import LABELS, Causes
from halfwise.reporting.causes import causes as groups_of

MOST = 400
"""Most places shown per group; run.json has the rest."""


def causes(stored: Stored) -> Section | None:
    """Return the section of causes; None if the run names none."""
    groups = groups_of(stored.run, stored.observations)
    if not groups:
        return None
    drawn = _Drawn(stored)
    places = Places(stored.evidence)
    low = stored.low
    told = [_group(group, drawn, places) for group in groups]
    data: Data = {
        "groups": told,
        "histograms": drawn.histograms,
        "format": {
            "name": low.name.upper(),
            "limit": low.overflow_threshold,
            "normal": low.smallest_normal,
            "subnormal": low.flush_threshold,
        },
        **places.data,
    }
    return Section("causes", "What was wrong, where and why", data, scripts=("histogram", "source"))


def _group(group: Causes, drawn: "_Drawn", places: Places) -> Data:
    shown = group.found[:MOST]
    return {
        "title": group.title,
        "state": group.state,
        "label": LABELS[group.state],
        "more": len(group.found) - len(shown),
        "found": [
            {
                "node": one.node,
                "tensor": one.tensor,
                "text": one.text,
                "fix": one.fix,
                "histogram": drawn.of(one.tensor, before=group.state == "mended"),
                "place": places.of(one.node),
            }
            for one in shown
        ],
    }


class _Drawn:
    """The drawn histograms, each once."""

    def __init__(self, stored: Stored) -> None:
        seen = stored.observations
        self._now = _details(seen.tensors if seen is not None else ())
        self._before = _details(seen.before if seen is not None else ())
        self._places: dict[int, int] = {}
        self.histograms: list[Data] = []

    def of(self, tensor: TensorName | None, *, before: bool) -> int | None:
        """Return the index of a tensor's histogram; None if there is none."""
        detail = (self._before if before else self._now).get(tensor) if tensor else None
        if detail is None:
            return None
        if id(detail) not in self._places:
            self._places[id(detail)] = len(self.histograms)
            self.histograms.append(
                {
                    "first": detail.histogram.first,
                    "counts": detail.histogram.counts,
                    "zeros": detail.histogram.zeros,
                    "overflow": detail.overflow,
                    "flush": detail.flush,
                    "subnormal": detail.subnormal,
                    "samples": detail.samples,
                }
            )
        return self._places[id(detail)]


def _details(tensors: Iterable[Observation]) -> dict[TensorName, Detail]:
    return {one.tensor: one.detail for one in tensors if one.detail is not None}
