"""Random exponents that satisfy the relations of a model."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from halfwise.graph.scaling import Relations
from halfwise.records import TensorName


def random_exponents(
    found: Relations, rng: np.random.Generator, *, most: int = 5, cuts: float = 0.2
) -> dict[TensorName, int]:
    """Return exponents up to `most`; an edge may have its own with probability `cuts`.

    An integer program with a random objective: its solutions are corners, and so as large as the
    relations let them be.
    """
    names = [*found.tensors, *found.edges, *found.constants]
    places = {name: i for i, name in enumerate(names)}
    low, high = np.full(len(names), -most), np.full(len(names), most)
    for name, constant in found.constants.items():
        low[places[name]], high[places[name]] = np.clip(constant.exponents(), -4 * most, 4 * most)
    for name in found.fixed:
        low[places[name]] = high[places[name]] = 0
    rows = [{places[n]: c for n, c in r.terms.items()} for r in found.equations]
    follows = [n for n in found.edges if rng.random() >= cuts]
    rows += [{places[n]: 1, places[found.edges[n].tensor]: -1} for n in follows]
    entries = [(c, i, j) for i, row in enumerate(rows) for j, c in row.items()]
    if not entries:
        return {}
    data, row, column = zip(*entries, strict=True)
    matrix = csr_array((data, (row, column)), shape=(len(rows), len(names)))
    solved = milp(
        rng.integers(-3, 4, len(names)),
        integrality=np.ones(len(names)),
        bounds=Bounds(low, high),
        constraints=LinearConstraint(matrix, 0, 0),
    )
    assert solved.success, solved.message
    values = dict(zip(names, np.rint(solved.x).astype(int).tolist(), strict=True))
    absorbed = {r.absorber for r in found.equations}
    return {
        name: e
        for name, e in values.items()
        if name not in absorbed and e != values.get(getattr(found.edges.get(name), "tensor", ""), 0)
    }
