import pytest
from support import oracle


@pytest.fixture(scope="module")
def jax():
    """JAX with 64-bit numbers."""
    jax = pytest.importorskip("jax")
    with oracle.x64():
        yield jax
