"""A program as text, with its arguments and its checks."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

#: What can be asked of a program, and how often it is; see ``compare.run``.
CHECKS = {
    "value": 8,
    "eager": 2,
    "donated": 2,
    "gradient": 6,
    "second": 3,
    "forward": 2,
    "batched": 3,
    "batched gradient": 2,
    "checkpointed": 2,
}


@dataclass(frozen=True)
class Case:
    """Statements, each of which names the value of an expression, and the names that are returned.

    The expressions are written in the names of ``namespaces``, and run with JAX and with tvmfun.
    """

    arguments: dict[str, np.ndarray]
    statements: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    check: str = "value"

    def text(self) -> str:
        """The program as a Python function."""
        lines = [f"    {name} = {expression}" for name, expression in self.statements]
        head = f"def program({', '.join(self.arguments)}):"
        return "\n".join([head, *lines, f"    return [{', '.join(self.outputs)}]"]) + "\n"

    def needed(self) -> Case:
        """The same outputs, without the statements and arguments that do not reach them."""
        used = set(self.outputs)
        kept = []
        for name, expression in reversed(self.statements):
            if name in used:
                kept.append((name, expression))
                used |= names_in(expression)
        arguments = {name: value for name, value in self.arguments.items() if name in used}
        return replace(
            self, arguments=arguments or dict(list(self.arguments.items())[:1]), statements=tuple(kept[::-1])
        )

    def as_test(self, name: str, about: str) -> str:
        """The source of a test that fails while the program differs."""
        arguments = "".join(f"            {key!r}: {literal(value)},\n" for key, value in self.arguments.items())
        statements = "".join(f"            ({left!r}, {right!r}),\n" for left, right in self.statements)
        outputs = "".join(f"{output!r}, " for output in self.outputs)
        head = "import numpy as np\nfrom fuzz.case import Case\nfrom fuzz.compare import difference\n"
        return (
            f'"""{about}"""\n\n{head}from numpy import inf, nan  # noqa: F401\n\n\ndef test_{name}():\n'
            f"    case = Case(\n        {{\n{arguments}        }},\n        (\n{statements}        ),\n"
            f"        ({outputs.strip()}),\n        {self.check!r},\n    )\n    assert difference(case) is None\n"
        )


def names_in(expression: str) -> set[str]:
    """The variables that an expression may read."""
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", expression))


def literal(array: np.ndarray) -> str:
    """An array as an expression; equal elements are not written out."""
    dtype = f"{array.dtype.name!r}"
    if array.size > 1 and (array == array.flat[0]).all():
        return f"np.full({array.shape}, {array.flat[0].item()!r}, {dtype})"
    text = f"np.array({array.tolist()!r}, {dtype})"
    if 0 in array.shape:
        return f"np.zeros({array.shape}, {dtype})"
    return text if array.dtype.name != "bfloat16" else f"np.array({array.tolist()!r}, 'float32').astype({dtype})"
