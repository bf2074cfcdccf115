"""Random exponents that satisfy the relations of a model, and what they must not change."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from halfwise.emulation.ort import Session
from halfwise.graph.loading import infer_again
from halfwise.graph.model import Network, node_name
from halfwise.graph.scaling import Relations, rescale
from halfwise.records import TensorName, replace


def random_exponents(
    constraints: Relations, rng: np.random.Generator, *, most: int = 5, cuts: float = 0.2
) -> dict[TensorName, int]:
    """Return exponents up to `most`; an edge may have its own with probability `cuts`.

    An integer program with a random objective: its solutions are corners, and so as large as the
    relations let them be.
    """
    names = [*constraints.tensors, *constraints.edges, *constraints.constants]
    places = {name: i for i, name in enumerate(names)}
    low, high = np.full(len(names), -most), np.full(len(names), most)
    for name, constant in constraints.constants.items():
        low[places[name]], high[places[name]] = np.clip(constant.exponents(), -4 * most, 4 * most)
    for name in constraints.fixed:
        low[places[name]] = high[places[name]] = 0
    rows = [{places[n]: c for n, c in r.terms.items()} for r in constraints.equations]
    follows = [n for n in constraints.edges if rng.random() >= cuts]
    rows += [{places[n]: 1, places[constraints.edges[n].tensor]: -1} for n in follows]
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
    absorbed = {r.absorber for r in constraints.equations}
    return {
        name: e
        for name, e in values.items()
        if name not in absorbed
        and e != values.get(getattr(constraints.edges.get(name), "tensor", ""), 0)
    }


def check(
    net: Network,
    exponents: Mapping[TensorName, int],
    sample: Mapping[str, np.ndarray],
    *,
    close: bool = False,
) -> ir.Model:
    """Assert that a rescaled model has the old names and gives the old outputs; return it."""
    model = net.copy()
    rescale(model, exponents)
    infer_again(replace(net, model=model))
    for before, after in (
        (net.graph.inputs, model.graph.inputs),
        (net.graph.outputs, model.graph.outputs),
    ):
        assert [(v.name, v.type, v.shape) for v in before] == [
            (v.name, v.type, v.shape) for v in after
        ]
    assert {node_name(n) for n in net.nodes()} <= {node_name(n) for n in model.graph}
    expected, given = Session(net.copy()).run(sample), Session(model).run(sample)
    for name, array in expected.items():
        if close:
            exact, constraints = array.astype(np.float64), given[name].astype(np.float64)
            np.testing.assert_allclose(constraints, exact, rtol=0, atol=1e-6 * np.abs(exact).max())
        else:
            np.testing.assert_array_equal(given[name], array)
    return model
