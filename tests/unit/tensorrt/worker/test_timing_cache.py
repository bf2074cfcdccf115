from halfwise.tensorrt.worker.timing_cache import keep_aside


def test_a_cache_that_is_not_taken_is_kept(tmp_path):
    cache = tmp_path / "t.cache"
    for number, content in enumerate((b"first", b"second", b"third")):
        cache.write_bytes(content)
        kept = tmp_path / ("t.cache.old" if not number else f"t.cache.old{number + 1}")
        assert f"It is {kept} now" in keep_aside(cache)
        assert kept.read_bytes() == content
        assert not cache.exists()


def test_one_that_is_gone_is_no_error(tmp_path):
    assert "did not take" in keep_aside(tmp_path / "t.cache")
