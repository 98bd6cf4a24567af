"""Running sums and the like along one axis, and linear recurrences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from op_cases.case import Case, apart, ints, reals


def along(accumulate: Callable) -> Callable:
    """``accumulate(x, axis)``, from the other end if ``reverse``."""

    def reference(x, axis, reverse):
        return np.flip(accumulate(np.flip(x, axis), axis), axis) if reverse else accumulate(x, axis)

    return reference


def recurrence_reference(a, b, axis, reverse):
    a, b = (np.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (a, b))
    y = b.copy()
    for i in range(1, len(y)):
        y[i] = a[i] * y[i - 1] + b[i]
    return np.moveaxis(y[:: -1 if reverse else 1], 0, axis)


def place_reference(x, axis, reverse, largest):
    rows = np.moveaxis(x, axis, 0)[:: -1 if reverse else 1]
    find = np.argmax if largest else np.argmin
    found = [find(rows[: i + 1], axis=0) for i in range(len(rows))]
    places = np.stack(found) if found else np.zeros(rows.shape)
    places = len(rows) - 1 - places[::-1] if reverse else places
    return np.moveaxis(places, 0, axis).astype(np.int32)


def cases(accumulate: Callable, make: Callable = reals) -> list[Case]:
    reference = along(accumulate)
    return [
        Case(reference, (make(*shape),), {"axis": axis, "reverse": reverse}, order)
        for shape, axis, reverse, order in (
            ((3, 4), 0, False, 2),
            ((3, 4), 1, True, 2),
            ((2, 5, 35), 1, True, 1),
            ((40,), 0, False, 1),
            ((0, 3), 0, False, 1),
            ((3, 0), 0, False, 1),
        )
    ]


def whole(accumulate: Callable, **options: int) -> Case:
    reference = lambda x, axis, reverse: along(accumulate)(x, axis, reverse).astype(x.dtype)
    return Case(reference, (ints(5, 3, **options),), {"axis": 0, "reverse": False}, exact=True)


ZEROS = np.asarray([[2.0, 0.0, 3.0, -1.5, 0.0, 2.5], [0.0, 1.5, 0.5, 2.0, 3.0, -1.0]])
NANS = np.asarray([[1.0, np.nan, 3.0, np.nan], [2.0, 3.0, np.nan, 1.0]])
INFINITE = np.asarray([-np.inf, -np.inf, 1.0, -np.inf, 2.0, np.inf, 3.0])

CASES: dict[str, list[Case]] = {
    "cumsum": [*cases(np.cumsum), whole(np.cumsum)],
    "cumprod": [
        *cases(np.cumprod),
        *(Case(along(np.cumprod), (ZEROS,), {"axis": 1, "reverse": reverse}) for reverse in (True, False)),
        whole(np.cumprod),
    ],
    "cumlogsumexp": [
        *cases(np.logaddexp.accumulate),
        Case(along(np.logaddexp.accumulate), (900 * reals(9),), {"axis": 0, "reverse": False}, order=1),
        Case(along(np.logaddexp.accumulate), (INFINITE,), {"axis": 0, "reverse": False}, order=0),
    ],
    "cummax": [
        *cases(np.maximum.accumulate, apart),
        Case(along(np.maximum.accumulate), (NANS,), {"axis": 1, "reverse": True}, order=0),
        whole(np.maximum.accumulate),
    ],
    "cummin": [
        *cases(np.minimum.accumulate, apart),
        Case(along(np.minimum.accumulate), (NANS,), {"axis": 1, "reverse": False}, order=0),
        whole(np.minimum.accumulate),
    ],
    "cum_arg_extremum": [
        Case(place_reference, (data,), {"axis": axis, "reverse": reverse, "largest": largest}, exact=True)
        for data, axis in ((apart(4, 3), 0), (ints(6, low=0, high=3), 0), (NANS, 1), (reals(0, 3), 0))
        for reverse in (True, False)
        for largest in (True, False)
    ],
    "linear_recurrence": [
        Case(recurrence_reference, (reals(*shape), reals(*shape)), {"axis": axis, "reverse": reverse}, order)
        for shape, axis, reverse, order in (
            ((3, 4), 0, False, 2),
            ((3, 4), 1, True, 2),
            ((2, 5, 35), 1, True, 1),
            ((1,), 0, False, 1),
            ((0, 3), 0, False, 1),
        )
    ],
}
