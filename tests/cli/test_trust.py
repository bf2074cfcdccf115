def test_trust_is_remembered_and_not_passed_on(call, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = answer("doctor", {})
    code, _, err = call("doctor", "--trust-config")
    assert (code, asked) == (2, [])
    assert "no halfwise.toml" in err
    (tmp_path / "halfwise.toml").write_text('[tensorrt]\npython = "python3"\n')
    assert call("doctor", "--trust-config")[0] == 0
    assert call("doctor")[0] == 0
    assert asked == [((), {})] * 2
