"""A marker for pytest: the test fails unless the model is right in low precision.

`@pytest.mark.halfwise(model="model.onnx", inputs="data.npz")` runs `fix`; with a `candidate`, such
as "mixed.onnx", it runs `verify`. Further arguments are options of these. The fixture
`halfwise_result` is the result, for a test that asserts more.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from halfwise.api import Result


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "halfwise(model, inputs, candidate=None, **options): fail unless the model is right in low "
        "precision, judged by halfwise fix, or verify of the candidate",
    )


@pytest.fixture
def halfwise_result(request: pytest.FixtureRequest) -> "Result":
    """What halfwise found for the marker of the test, which fails if the verdict did."""
    marker = request.node.get_closest_marker("halfwise")
    if marker is None:
        pytest.fail("halfwise_result needs @pytest.mark.halfwise(model=…, inputs=…)", pytrace=False)
    import halfwise  # noqa: PLC0415 - sessions without the marker do not wait for it

    options = dict(marker.kwargs)
    model, inputs = options.pop("model"), options.pop("inputs")
    candidate = options.pop("candidate", None)
    result = (
        halfwise.fix(model, inputs, **options)
        if candidate is None
        else halfwise.verify(model, candidate, inputs, **options)
    )
    if not result.run.verdict.passed:
        pytest.fail(str(result), pytrace=False)
    return result


@pytest.fixture(autouse=True)
def _halfwise(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("halfwise") is not None:
        request.getfixturevalue("halfwise_result")
