import halfwise
from halfwise import api


def test_every_public_name_is_there():
    assert set(halfwise.__all__) == set(api.__all__) == set(api._MODULES)
    for name in halfwise.__all__:
        assert getattr(halfwise, name) is getattr(api, name)
