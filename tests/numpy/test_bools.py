"""Arithmetic of bools is logic, as in NumPy and JAX."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import errors

MASK, OTHER = np.asarray([True, True, False, False]), np.asarray([True, False, True, False])


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_of_two_bools(name):
    expected = getattr(np, name)(MASK, OTHER)
    np.testing.assert_array_equal(getattr(tnp, name)(MASK, OTHER), expected)
    np.testing.assert_array_equal(tvmfun.jit(getattr(tnp, name))(MASK, OTHER), expected)


def test_operators_on_bools_and_numbers():
    mask = tnp.asarray(MASK)
    np.testing.assert_array_equal(mask * mask, MASK)
    np.testing.assert_array_equal(mask + True, [True] * 4)
    np.testing.assert_array_equal(mask * 2, [2, 2, 0, 0])
    np.testing.assert_array_equal(mask + 1.5, [2.5, 2.5, 1.5, 1.5])
    with pytest.raises(errors.DtypeError):
        mask - mask


def test_an_update_without_places():
    with pytest.raises(errors.IndexingError, match=r"x\.at\[\.\.\.\]\.set"):
        tnp.zeros(3).at.set(1.0)


def test_traced_sizes():
    with pytest.raises(errors.ConcretizationError, match="static_argnums"):
        tvmfun.jit(lambda n: tnp.zeros(n))(3)
