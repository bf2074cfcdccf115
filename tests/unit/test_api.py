from typing import get_type_hints

import pytest

import halfwise
from halfwise import api


def test_every_public_name_is_there():
    assert set(halfwise.__all__) == set(api.__all__) == set(api._MODULES)
    for name in halfwise.__all__:
        assert getattr(halfwise, name) is getattr(api, name)


@pytest.mark.parametrize("name", [n for n in api.__all__ if n[0].islower()])
def test_types_can_be_asked_for(name):
    assert "return" in get_type_hints(getattr(api, name))
