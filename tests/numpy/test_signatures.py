"""Every call that JAX's signatures allow is allowed here: names and order of parameters, with their exceptions."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from support.signatures import differences, shared

import tvmfun.numpy as tnp

#: What stays different, and why.
EXCEPTIONS = {
    "array": {"args": "positional arguments that JAX only names in an error"},
    "clip": {"arr has no default": "JAX needs it, too"},
    "frompyfunc": {},
}
MODULES = {"numpy": (jnp, tnp), "numpy.linalg": (jnp.linalg, tnp.linalg)}


@pytest.mark.parametrize("module", MODULES)
def test_signatures(module):
    theirs, ours = MODULES[module]
    names = list(shared(theirs, ours))
    found = {}
    for name in names:
        wrong = differences(getattr(theirs, name), getattr(ours, name))
        wrong = [w for w in wrong if not any(w.startswith(part) or part in w for part in EXCEPTIONS.get(name, {}))]
        if wrong:
            found[name] = wrong
    assert not found
    assert len(names) > (250 if module == "numpy" else 25)
