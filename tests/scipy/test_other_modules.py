"""Signals, images, clusters and integrals against SciPy."""

import numpy as np
import pytest
import scipy.cluster.vq
import scipy.integrate
import scipy.ndimage
import scipy.signal
from support import derivatives

import tvmfun
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.scipy import cluster, integrate, ndimage, signal

RNG = np.random.default_rng(0)
LONG, SHORT = RNG.normal(size=9), RNG.normal(size=4)
IMAGE, FILTER = RNG.normal(size=(5, 6)), RNG.normal(size=(2, 3))


@pytest.mark.quick("same")
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions(mode):
    for name in ("convolve", "correlate"):
        ours, theirs = getattr(signal, name), getattr(scipy.signal, name)
        for x, y in ((LONG, SHORT), (SHORT, LONG), (IMAGE, FILTER)):
            if mode == "same" and x is SHORT:
                continue
            if name == "correlate" and x is SHORT and mode == "valid":
                continue
            np.testing.assert_allclose(ours(x, y, mode), theirs(x, y, mode), rtol=1e-10, atol=1e-12, err_msg=name)
    for name in ("convolve2d", "correlate2d"):
        expected = getattr(scipy.signal, name)(IMAGE, FILTER, mode)
        np.testing.assert_allclose(getattr(signal, name)(IMAGE, FILTER, mode), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_trends(axis):
    for kwargs in ({}, {"type": "constant"}, {"bp": 2}, {"bp": [1, 3]}):
        expected = scipy.signal.detrend(IMAGE, axis, **kwargs)
        np.testing.assert_allclose(signal.detrend(IMAGE, axis, **kwargs), expected, atol=1e-12, err_msg=str(kwargs))


@pytest.mark.quick("1-constant", "1-mirror", "0-mirror", "1-nearest")
@pytest.mark.parametrize("mode", ["constant", "nearest", "mirror"])
@pytest.mark.parametrize("order", [0, 1])
def test_map_coordinates(order, mode):
    places = [RNG.uniform(-0.9, 4.9, size=(3, 7)), RNG.uniform(-0.9, 5.9, size=(3, 7))]
    expected = scipy.ndimage.map_coordinates(
        IMAGE, places, order=order, mode="grid-constant" if mode == "constant" else mode, cval=1.5
    )
    found = ndimage.map_coordinates(IMAGE, places, order, mode, 1.5)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_map_coordinates_around_the_edges():
    jax = pytest.importorskip("jax")
    places = [RNG.uniform(-9, 14, size=20), RNG.uniform(-9, 14, size=20)]
    with jax.enable_x64(True):
        import jax.scipy.ndimage

        for mode in ("wrap", "reflect", "mirror"):
            expected = np.asarray(jax.scipy.ndimage.map_coordinates(IMAGE, places, 1, mode))
            np.testing.assert_allclose(
                ndimage.map_coordinates(IMAGE, places, 1, mode), expected, rtol=1e-10, atol=1e-12
            )


@pytest.mark.slow
def test_codes_and_integrals():
    points, codes = RNG.normal(size=(8, 2)), RNG.normal(size=(3, 2))
    for found, expected in zip(cluster.vq.vq(points, codes), scipy.cluster.vq.vq(points, codes), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(
        integrate.trapezoid(IMAGE, axis=0, dx=0.5), scipy.integrate.trapezoid(IMAGE, axis=0, dx=0.5)
    )


@pytest.mark.slow
def test_derivatives_and_batches():
    derivatives.check(signal.convolve, (LONG, SHORT), order=1)
    derivatives.check(lambda x, p: ndimage.map_coordinates(x, [p, p], 1), (IMAGE, np.asarray([0.3, 2.7])), order=1)
    derivatives.check(signal.detrend, (IMAGE,), order=1)
    batched = tvmfun.vmap(lambda x: signal.correlate(x, SHORT))(np.stack([LONG, 2 * LONG]))
    np.testing.assert_allclose(batched[1], 2 * scipy.signal.correlate(LONG, SHORT), rtol=1e-10)


WRONG = {
    "mode": (ArgumentError, r"^\[convolve\] the mode must be", lambda: signal.convolve(LONG, SHORT, "most")),
    "axes": (ShapeError, r"^\[convolve\] both must have the same number", lambda: signal.convolve(LONG, IMAGE)),
    "boundary": (ArgumentError, r"^\[convolve2d\] beyond", lambda: signal.convolve2d(IMAGE, IMAGE, boundary="wrap")),
    "type": (ArgumentError, r"^\[detrend\] the type must be", lambda: signal.detrend(LONG, type="square")),
    "order": (ArgumentError, r"^\[map_coordinates\] the order", lambda: ndimage.map_coordinates(LONG, [SHORT], 3)),
    "places": (ShapeError, r"^\[map_coordinates\] there must be", lambda: ndimage.map_coordinates(IMAGE, [SHORT], 1)),
    "codes": (ShapeError, r"^\[vq\] both must be", lambda: cluster.vq.vq(LONG, IMAGE)),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    error, message, call = WRONG[case]
    with pytest.raises(error, match=message):
        call()
