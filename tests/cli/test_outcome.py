import pytest
import typer

from halfwise.cli.outcome import conclude
from halfwise.store import run_json
from tests.unit.reporting.runs import run, verdict


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 10)])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_is_the_verdict(capsys, passed, code, as_json):
    made = run(verdict=verdict(passed=passed))
    with pytest.raises(typer.Exit) as end:
        conclude(made, as_json=as_json)
    assert end.value.exit_code == code
    out = capsys.readouterr().out
    assert (out == run_json(made)) is as_json
