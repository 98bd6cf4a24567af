"""Every call that the signatures of JAX's primitives allow is allowed here; with the exceptions of ``signatures``."""

from __future__ import annotations

import jax
import pytest
from support.signatures import WITHOUT, differences, shared

from tvmfun import lax

MODULES = {"lax": (jax.lax, lax), "lax.linalg": (jax.lax.linalg, lax.linalg)}
#: Parameters that only these modules of JAX have.
EXTRA = WITHOUT | {
    "to": "how JAX types values that differ between devices",
    "implementation": "which of XLA's algorithms computes; there is one",
    "algorithm": "which of XLA's algorithms computes; there is one",
    "use_magma": "a library that JAX calls on GPUs",
}


@pytest.mark.parametrize("module", MODULES)
def test_signatures(module):
    theirs, ours = MODULES[module]
    names = list(shared(theirs, ours))
    found = {name: differences(getattr(theirs, name), getattr(ours, name), EXTRA) for name in names}
    assert not {name: wrong for name, wrong in found.items() if wrong}
    assert len(names) > (120 if module == "lax" else 5)
