import curve
import pytest


@pytest.fixture(autouse=True)
def no_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no curve, except in the tests of curves: it took a sixth of the time of a run."""
    if "curve" not in request.node.name:
        monkeypatch.setattr(curve, "draw", lambda runs, path: None)
