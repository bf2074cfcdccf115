"""What a command of the library returns: the record, the model, and tables of numbers."""

from collections.abc import Iterable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.graph.weights import PROTOBUF_BYTES, weight_bytes
from halfwise.records import NodeName, Observations, Run
from halfwise.reporting import view
from halfwise.wording import size_of

Columns = dict[str, NDArray[Any]]
"""Arrays of one length, by name: `pandas.DataFrame(columns)` is a table of them."""


class Result(Struct, frozen=True):
    """The result of a command; `print` shows the report's first screen, a notebook a picture.

    Attributes:
        run: The content of `run.json`.
        folder: The run folder, if one was requested.
        mixed: The mixed-precision model as halfwise holds it; None if there is none.
        observations: Ranges of the FP32 tensors; None if they were not observed.
    """

    run: Run
    folder: Path | None
    mixed: ir.Model | None = None
    observations: Observations | None = None

    @property
    def model(self) -> onnx.ModelProto | None:
        """The mixed-precision model with its weights, built on demand; None if there is none.

        Raises:
            CaseError: its weights exceed what one protobuf can hold (2 GB).
        """
        if self.mixed is None:
            return None
        size = weight_bytes(self.mixed)
        if size > PROTOBUF_BYTES:
            raise CaseError(
                f"The mixed model has {size_of(size)} of weights, more than a protobuf holds.",
                "Name a folder, `out=…`: weights are then stored in a file next to the model.",
            )
        return ir.serde.serialize_model(self.mixed)

    def nodes(self) -> Columns:
        """Return a row for each observed tensor that a node computes, in the order of the graph.

        `node`, `op` and `tensor` are names; `absmax` is the largest finite magnitude in FP32, and
        `nonfinite` counts NaN and infinite elements; `overflow`, `flush` and `subnormal` are
        fractions of elements that become that in the low format, NaN where not measured.
        `precision` is that of a kept node, such as "fp32", and `reason` why; "" for others.
        """
        seen = () if self.observations is None else self.observations.tensors
        rows = [one for one in seen if one.producer is not None]
        kept = {one.node: one for one in (self.run.plan.keep if self.run.plan else ())}
        keeping = [kept.get(NodeName(one.producer or "")) for one in rows]
        details = [one.detail for one in rows]
        return {
            "node": _names(one.producer for one in rows),
            "op": _names(one.op for one in rows),
            "tensor": _names(one.tensor for one in rows),
            "absmax": _numbers(one.absmax for one in rows),
            "nonfinite": np.array([one.nonfinite for one in rows], np.int64),
            "overflow": _numbers(None if d is None else d.overflow for d in details),
            "flush": _numbers(None if d is None else d.flush for d in details),
            "subnormal": _numbers(None if d is None else d.subnormal for d in details),
            "precision": _names(k.precision if k else "" for k in keeping),
            "reason": _names(k.reason if k else "" for k in keeping),
        }

    def curve(self) -> Columns:
        """Return a row for each plan to choose from, cheapest first; none if there is no curve.

        `kept` counts its nodes in FP32. `cost` is relative to everything low. `error` on the
        samples of the search is relative to what is allowed: 1 just passes. NaN where unknown.
        `delivered` is true for at most one row.
        """
        curve = self.run.curve
        points = curve.points if curve is not None else ()
        chosen = curve.plan if curve is not None else None
        return {
            "kept": np.array([point.count for point in points], np.int64),
            "cost": _numbers(point.cost for point in points),
            "error": _numbers(point.error for point in points),
            "delivered": np.arange(len(points)) == (-1 if chosen is None else chosen),
        }

    def histograms(self) -> Columns:
        """Return the histograms of log2 |x| of the observed tensors, a row for each bin.

        `count` elements of `tensor` are in [2^`exponent`, 2^(`exponent` + 1)). Zeros are in none.
        """
        seen = () if self.observations is None else self.observations.tensors
        bins = [
            (one.tensor, one.detail.histogram.first + i, count)
            for one in seen
            if one.detail is not None
            for i, count in enumerate(one.detail.histogram.counts)
        ]
        tensors, exponents, counts = zip(*bins, strict=True) if bins else ((), (), ())
        return {
            "tensor": _names(tensors),
            "exponent": np.array(exponents, np.int64),
            "count": np.array(counts, np.int64),
        }

    def __str__(self) -> str:
        """Return the report's first screen."""
        from halfwise.reporting.terminal import first_screen  # noqa: PLC0415 - it loads rich

        page = "" if self.folder is None else f"Whole report: {self.folder / 'report.html'}"
        return first_screen(view.screen(self.run), page)

    def __repr__(self) -> str:
        """Return the verdict on one line."""
        return f"<halfwise.Result: {view.report(self.run).title}>"

    def _repr_html_(self) -> str:
        """Return the headline and the headroom strip, for notebooks."""
        from markupsafe import Markup  # noqa: PLC0415

        from halfwise.reporting.strip import strip  # noqa: PLC0415 - it loads markupsafe

        shown, picture = view.report(self.run), strip(self.run, self.observations) or Markup()
        headline = Markup("<p><strong>{}</strong><br>{}</p>").format(shown.title, shown.about)
        return str(headline + picture)


def _names(values: Iterable[str | None]) -> NDArray[np.str_]:
    return np.array([value or "" for value in values], np.str_)


def _numbers(values: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([nan if value is None else value for value in values], np.float64)
