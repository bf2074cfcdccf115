"""Words on what is acceptable."""

from halfwise.metrics import effective, rises
from halfwise.records import Criterion
from halfwise.wording import number, sentence


def allowed(criterion: Criterion) -> str:
    """Return what makes a result acceptable, in one clause."""
    holds = effective(criterion)
    if holds.metric is not None:
        whose = f" by default ({holds.drop_source})" if holds.drop_source else ""
        may = "may rise by" if rises(holds.metric) else "may fall by"
        return f"{sentence(holds.metric)} {may} {number(holds.metric_drop)}{whose}"
    limits = {
        "max abs ≤": holds.max_abs,
        "rel max ≤": holds.rel_max,
        "SNR dB ≥": holds.snr_db,
        "cosine ≥": holds.cosine,
    }
    return ", ".join(f"{name} {value:g}" for name, value in limits.items() if value is not None)
