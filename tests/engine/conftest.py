"""What tests of whole engines share: the scripted runner in both of its ways."""
import pytest
from scripted import ScriptedRunner


@pytest.fixture(params=[False, True], ids=["a step after another", "ahead"])
def one_by_one_and_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test twice: with a runner that takes a step after another, and with one that asks what each foresees."""
    monkeypatch.setattr(ScriptedRunner, "ahead", request.param)
