"""Gather, scatter, dynamic slices and sorting."""

from __future__ import annotations

import numpy as np

from op_cases.case import Case, apart, bools, ints, reals

COMBINE = {
    "set": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def inside(at: np.ndarray, x: np.ndarray) -> bool:
    return all(0 <= i < n for i, n in zip(at, x.shape, strict=False))


def gather_reference(x, indices, mode, batch=0):
    if batch:
        return np.stack([gather_reference(y, i, mode, batch - 1) for y, i in zip(x, indices, strict=True)])
    out = np.zeros(indices.shape[:-1] + x.shape[indices.shape[-1] :], x.dtype)
    for place in np.ndindex(*indices.shape[:-1]):
        at = indices[place]
        if inside(at, x) or mode != "fill":
            out[place] = x[tuple(np.clip(i, 0, n - 1) for i, n in zip(at, x.shape, strict=False))]
    return out


def scatter_reference(x, indices, updates, mode, batch=0, unique=False, size=None):
    if size is not None:
        x = np.full(size, x)
    if batch:
        parts = zip(x, indices, updates, strict=True)
        return np.stack([scatter_reference(y, i, u, mode, batch - 1) for y, i, u in parts])
    out = x.copy()
    for place in np.ndindex(*indices.shape[:-1]):
        at = tuple(indices[place])
        if inside(at, x):
            out[at] = COMBINE[mode](out[at], updates[place])
    return out


def begins(starts, shape, sizes):
    return [int(np.clip(start, 0, n - size)) for start, n, size in zip(starts, shape, sizes, strict=True)]


def dynamic_slice_reference(x, *starts, sizes):
    if starts and starts[0].ndim:
        rows = zip(x, *starts, strict=True)
        return np.stack([dynamic_slice_reference(y, *map(np.asarray, s), sizes=sizes) for y, *s in rows])
    return x[tuple(slice(b, b + size) for b, size in zip(begins(starts, x.shape, sizes), sizes, strict=True))]


def dynamic_update_slice_reference(x, update, *starts):
    if starts and starts[0].ndim:
        rows = zip(x, update, *starts, strict=True)
        return np.stack([dynamic_update_slice_reference(y, u, *map(np.asarray, s)) for y, u, *s in rows])
    out = x.copy()
    places = zip(begins(starts, x.shape, update.shape), update.shape, strict=True)
    out[tuple(slice(b, b + size) for b, size in places)] = update
    return out


def whole(value: int) -> np.ndarray:
    return np.asarray(value, np.int32)


INDICES = np.asarray([[0, 1], [2, 0], [0, 1], [1, 3]], np.int32)
OUTSIDE = np.asarray([[[1], [5]], [[-1], [0]]], np.int32)
BATCHED = np.asarray([[[0], [2], [0]], [[1], [7], [1]]], np.int32)
DISTINCT = np.asarray([[3], [0], [-1]], np.int64)
SMALL = np.asarray([[200], [3]], np.uint8)
TIES = np.asarray([[3.0, 1.0, 3.0], [np.nan, 5.0, np.nan]])


def _largest(x, *, k):
    """By sorting backwards twice."""
    return (x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1])[..., :k].astype(np.int32)


ZEROS = np.asarray([2.0, 0.0, -0.0, np.nan, -np.inf, 0.0])

STARTS = (whole(1), whole(-3), whole(9))
ROWS = (np.asarray([0, 2], np.int64), np.asarray([1, 9], np.int64))

CASES: dict[str, list[Case]] = {
    "gather": [
        Case(gather_reference, (reals(3, 4), INDICES), {"mode": "clip"}),
        Case(gather_reference, (reals(4, 2), OUTSIDE), {"mode": "clip"}),
        Case(gather_reference, (reals(4, 2), OUTSIDE), {"mode": "fill"}),
        Case(gather_reference, (reals(3, 4), INDICES), {"mode": "in_bounds"}),
        Case(gather_reference, (reals(2, 3, 2), BATCHED), {"mode": "clip", "batch": 1}),
        Case(gather_reference, (reals(2, 3, 2), BATCHED), {"mode": "fill", "batch": 1}),
        Case(gather_reference, (reals(300, 1), SMALL), {"mode": "clip"}, order=1),
    ],
    "scatter": [
        *(Case(scatter_reference, (reals(3, 4), INDICES, reals(4)), {"mode": mode}) for mode in ("add", "set", "mul")),
        *(Case(scatter_reference, (apart(3, 4), INDICES, apart(4) + 0.01), {"mode": mode}) for mode in ("min", "max")),
        *(Case(scatter_reference, (apart(4, 2), OUTSIDE, apart(2, 2, 2) + 0.01), {"mode": mode}) for mode in COMBINE),
        *(
            Case(scatter_reference, (apart(2, 3), BATCHED, apart(2, 3) + 0.01), {"mode": mode, "batch": 1})
            for mode in COMBINE
        ),
        *(
            Case(scatter_reference, (apart(4, 2), DISTINCT, apart(3, 2) + 0.01), {"mode": mode, "unique": True})
            for mode in COMBINE
        ),
        *(
            Case(scatter_reference, (np.asarray(0.7), OUTSIDE, apart(2, 2, 2) + 0.01), {"mode": mode, "size": (4, 2)})
            for mode in COMBINE
        ),
        Case(scatter_reference, (np.zeros(3), INDICES[:, :1], np.asarray([0.0, 2.0, 3.0, 0.0])), {"mode": "mul"}, 1),
        Case(scatter_reference, (ints(4), DISTINCT, ints(3)), {"mode": "max"}, exact=True),
        Case(scatter_reference, (bools(4), DISTINCT, bools(3)), {"mode": "set"}, exact=True),
        Case(scatter_reference, (reals(300), SMALL, reals(2)), {"mode": "add"}, order=1),
    ],
    "dynamic_slice": [
        Case(dynamic_slice_reference, (reals(4, 5, 3), *STARTS), {"sizes": (2, 4, 1)}),
        Case(dynamic_slice_reference, (reals(2, 4, 5), *ROWS), {"sizes": (2, 3)}),
        Case(dynamic_slice_reference, (ints(5), np.asarray(250, np.uint8)), {"sizes": (2,)}, exact=True),
        Case(dynamic_slice_reference, (reals(5), whole(1)), {"sizes": (0,)}),
        Case(dynamic_slice_reference, (reals(),), {"sizes": ()}),
    ],
    "dynamic_update_slice": [
        Case(dynamic_update_slice_reference, (reals(4, 5, 3), reals(2, 5, 1), *STARTS)),
        Case(dynamic_update_slice_reference, (reals(2, 4, 5), reals(2, 2, 3), *ROWS)),
        Case(dynamic_update_slice_reference, (bools(5), bools(2), np.asarray(250, np.uint8)), exact=True),
        Case(dynamic_update_slice_reference, (reals(5), reals(0), whole(1))),
        Case(dynamic_update_slice_reference, (reals(), reals())),
    ],
    "argsort": [
        Case(lambda x: np.argsort(x, axis=-1, kind="stable").astype(np.int32), (data,), exact=True)
        for data in (
            *(ints(3, 17), TIES, reals(1), ints(2, 0), ints(33).astype(np.uint32), bools(7), ZEROS),
            *(reals(2, 70), ints(200, low=-1000, high=1000), ints(100).astype(np.int8), ints(90).astype(np.uint64)),
            np.tile(ZEROS, 12),
        )
    ],
    "top_k_indices": [
        Case(_largest, (data,), {"k": k}, exact=True)
        for data, k in (
            *((ints(3, 17), 17), (TIES, 2), (reals(1), 1), (ints(33).astype(np.uint32), 3), (bools(7), 3), (ZEROS, 6)),
            *((reals(2, 700), 5), (ints(700, low=-1000, high=1000), 5), (ints(300).astype(np.int8), 2)),
            *(
                (ints(200).astype(np.uint64), 1),
                (np.tile(ZEROS, 50), 2),
                (np.sort(reals(2, 2050)), 16),
                (np.zeros(200), 1),
            ),
            (np.concatenate([np.full(64, np.nan), reals(200)]), 2),
        )
    ],
}
