"""Prints what the OpInfo tests compared and skipped, after all of them (also where xdist runs them)."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def outside_of_unittest() -> Iterator[None]:
    """Samples of PyTorch without the search for a ``unittest.TestCase`` on the stack, which reads all frames' sources.

    It takes the longer the more modules are imported: among all tests, a third of the time of these.
    """
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    with pytest.MonkeyPatch.context() as patch:
        for module in (common_utils, core):
            patch.setattr(module, "extract_test_fn", lambda: None)
        yield


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, ())]
    rows, skipped = [], {}
    for report in reports:
        properties = dict(getattr(report, "user_properties", ()))
        if "opinfo" in properties and report.when == "call":
            name = properties["opinfo"][0]
            rows.append((*properties["opinfo"], "" if report.passed else "FAILED"))
            skipped[name] = properties.get("opinfo_skipped", [])
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("OpInfo: compared with PyTorch")
    write(f"{'op':52}{'samples':>8}{'vjp':>5}{'jvp':>5}{'torch jvp':>11}  skipped samples")
    for name, samples, derivatives, forward, failed in sorted(rows):
        line = f"{name:52}{samples:>8}{derivatives:>5}{derivatives:>5}{forward:>11}  {', '.join(skipped[name])}"
        write(f"{line} {failed}".rstrip())
    write(
        f"{len(rows)} ops, {sum(r[1] for r in rows)} samples; vjp and jvp of {sum(r[2] > 0 for r in rows)} ops, "
        f"the jvp against PyTorch's of {sum(r[3] > 0 for r in rows)}"
    )
    from interop.opinfo_table import JVP_FROM_VJP, LEFT_OUT, VALUES_ONLY

    for title, names in (("values only", VALUES_ONLY), ("jvp from the vjp", JVP_FROM_VJP), ("left out", LEFT_OUT)):
        reasons: dict[str, list[str]] = {}
        for name, reason in names.items():
            reasons.setdefault(reason, []).append(name)
        for reason, members in reasons.items():
            write(f"{title}: {reason} ({len(members)}): {' '.join(members)}")
