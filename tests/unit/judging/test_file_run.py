import numpy as np
import pytest

from halfwise.errors import KernelMissing
from halfwise.formats import BF16, FP16
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.roles import float_io, roles_of
from halfwise.graph.sensitivity import decisions
from halfwise.judging.file_run import flips, run_as_file
from tests import models
from tests.unit.casing import names, prepare


def test_a_file_with_nothing_low_gives_the_reference():
    prepared = prepare(models.layer_norm())
    everything = frozenset(prepared.roles)
    model = rewrite(prepared.network, prepared.roles, everything, FP16).model
    results = run_as_file(model, prepared.samples, prepared.references)
    for result, reference in zip(results, prepared.references, strict=True):
        np.testing.assert_array_equal(result["gamma_out"], reference["gamma_out"])


def test_low_inputs_and_outputs_are_converted():
    prepared = prepare(models.small())
    network = prepared.network
    model = rewrite(network, prepared.roles, names(), FP16, low_io=float_io(network)).model
    for result in run_as_file(model, prepared.samples, prepared.references):
        assert result["relu_out"].dtype == np.float32
        np.testing.assert_array_equal(result["relu_out"], FP16.round(result["relu_out"]))


def test_decisions_that_fall_otherwise_are_counted():
    prepared = prepare(models.position_bucket())
    found = list(decisions(prepared.network))
    low = rewrite(prepared.network, prepared.roles, names(), FP16).model
    (flip,) = flips(low, found, prepared.samples)
    assert (flip.node, flip.op) == ("bucket", "Cast")
    assert 0 < flip.elements < flip.of == 8 * 24
    mended = rewrite(prepared.network, prepared.roles, names("quotient"), FP16).model
    assert flips(mended, found, prepared.samples) == ()


def test_a_type_without_kernels_is_refused():
    prepared = prepare(models.layer_norm())
    roles = roles_of(prepared.network, low_type(BF16))
    model = rewrite(prepared.network, roles, names(), BF16).model
    with pytest.raises(KernelMissing):
        run_as_file(model, prepared.samples, prepared.references)
