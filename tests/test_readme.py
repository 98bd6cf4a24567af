import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    return README.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_runs(capsys):
    (example,) = blocks(README.read_text(), "python")
    exec(compile(example, str(README), "exec"), {"__name__": "readme"})
    loss = float(capsys.readouterr().out.removeprefix("loss "))
    assert loss < 0.05


@pytest.mark.parametrize("title", ["Try it", "Test it"])
def test_a_section_gives_one_command(title):
    (block,) = blocks(section(title), "sh")
    assert len(block.splitlines()) == 1


def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)#:\s]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
