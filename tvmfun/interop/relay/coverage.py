"""The table of Relay operators that are read, as a section of the documentation, ``docs/interop.md``."""

from __future__ import annotations

import importlib
from typing import Any

from tvmfun.interop.coverage_page import by_family, with_section
from tvmfun.interop.relay.operators import LEFT_OUT, TRANSLATIONS, Attribute

BEGIN = "<!-- Written by `python -m tvmfun.interop.relay docs/interop.md`. -->"
END = "<!-- The end of what was written about Relay. -->"


def _shown(name: str, attribute: Attribute) -> str:
    return name if attribute.is_required else f"{name}={_value(attribute.default)}"


def _value(value: Any) -> str:
    """A default as TVM prints it."""
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, tuple) else str(value)


def _title(family: str) -> str:
    module = importlib.import_module(f"tvmfun.interop.relay.operators.{family}")
    return (module.__doc__ or family).partition(".\n")[0].partition(". ")[0].rstrip(".\n")


def markdown() -> str:
    """The section about operators, between its two comments."""
    lines = [BEGIN, "", f"The table has {len(TRANSLATIONS)} rows; attributes without a default must be written."]
    for family, names in by_family({name: row.family for name, row in TRANSLATIONS.items()}).items():
        rows = [TRANSLATIONS[name] for name in names]
        lines += ["", f"**{_title(family)}.**"]
        plain = [row.name for row in rows if not row.attributes]
        if plain:
            lines += ["", f"Without attributes: {', '.join(f'`{name}`' for name in plain)}."]
        lines += ["", "| Operator | Attributes |", "| --- | --- |"]
        for row in rows:
            if row.attributes:
                shown = ", ".join(f"`{_shown(name, attribute)}`" for name, attribute in row.attributes.items())
                lines.append(f"| `{row.name}` | {shown} |")
    lines += ["", "These operators are left out:", "", "| Operator | Why |", "| --- | --- |"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(LEFT_OUT.items())]
    return "\n".join([*lines, "", END])


def updated(page: str) -> str:
    """The text of the page with the section as the table is now."""
    return with_section(page, markdown())
