"""Sections of a page that are written from a table of operators, between two comments."""

from __future__ import annotations

from collections.abc import Mapping


def by_family(family_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Groups the names of operators by the module that translates them, all sorted."""
    result: dict[str, list[str]] = {}
    for name in sorted(family_of):
        result.setdefault(family_of[name], []).append(name)
    return dict(sorted(result.items()))


def with_section(page: str, section: str) -> str:
    """Returns the page with this section instead of the one between the same first and last lines."""
    begin, *_, end = section.splitlines()
    before, _, rest = page.partition(begin)
    return before + section + rest.partition(end)[2]
