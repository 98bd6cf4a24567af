"""Prints what the tests against JAX checked, after all of them (also where xdist runs them)."""

from typing import Any

import pytest

#: The columns of the table, and the letter of each form.
FORMS = {
    "eager": "e",
    "jit": "j",
    "vmap": "m",
    "jvp": "f",
    "vjp": "r",
    "dynamic": "d",
    "dynamic jvp": "F",
    "dynamic vjp": "R",
}
LEGEND = (
    "e eager, j compiled, m vmap, f jvp, r vjp; d F R the value, jvp and vjp with a dynamic axis; "
    "- refused with an error; ! failed"
)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    table: dict[str, dict[str, str]] = {}
    notes: dict[str, list[str]] = {}
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, ()):
            checked = dict(getattr(report, "user_properties", ())).get("against_jax")
            if report.when != "call":
                continue
            for name, dtype, forms, *refusals in checked or ():
                letters = "".join(letter for form, letter in FORMS.items() if forms.get(form))
                table.setdefault(name, {})[dtype] = "!" if report.failed else letters or "-"
                for text in refusals:
                    notes.setdefault(text.split(", got")[0], []).append(dtype)
    if not table:
        return
    write = terminalreporter.write_line
    terminalreporter.section("ops compared with JAX")
    write(LEGEND)
    columns = sorted({dtype for row in table.values() for dtype in row})
    write(" " * 22 + "".join(f"{dtype:<10}" for dtype in columns))
    for name, row in sorted(table.items()):
        write(f"{name:<22}" + "".join(f"{row.get(dtype, ''):<10}" for dtype in columns).rstrip())
    if config.get_verbosity() > 0:
        for text, members in sorted(notes.items()):
            write(f"{text} ({', '.join(sorted(members))})")
    write(f"{len(table)} ops, {sum(cell not in '-!' for row in table.values() for cell in row.values())} with a dtype")
