"""``x.at[index]``: updates of some elements of an array, which return a new array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray, device_array
from tvmfun.core.leaf import abstract
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ArgumentTypeError, ConcretizationError, IndexingError, ShapeError
from tvmfun.numpy.creation import asarray, ones_like
from tvmfun.numpy.dtypes import weakly_typed
from tvmfun.numpy.elementwise import add, clip, divide, maximum, minimum, multiply, negative, pow, where
from tvmfun.numpy.indexing import (
    bounds,
    check_mode,
    getitem,
    is_array,
    is_immediate,
    joined,
    normalized,
    numpy_index,
    outside_as_arrays,
    read,
    stacked,
    static_integer,
    without_bools,
)
from tvmfun.numpy.promotion import convert
from tvmfun.numpy.shapes import expand_dims, ravel, reshape
from tvmfun.ops import control, pointwise, reduce
from tvmfun.ops import index as ops
from tvmfun.ops import shape as shapes

_NOWHERE = object()


# The function of the old element and the update, by the mode of `scatter`.
_COMBINE: dict[str, Callable[[Any, Any], Array]] = {
    "set": lambda old, new: new,
    "add": add,
    "mul": multiply,
    "min": minimum,
    "max": maximum,
}
_NUMPY_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class At:
    """The elements ``x.at[index]`` of an array, for functional updates: they return a new array.

    Every update takes these options:

    - ``mode``: how to treat indices in index arrays that are outside the array: ``"drop"`` or ``"fill"``, the
      default, leaves them out; ``"clip"`` takes the nearest element; ``"promise_in_bounds"`` says there are none.
    - ``unique_indices``: a promise that no index occurs twice, so that all are updated in parallel.
    - ``indices_are_sorted``: JAX's promise, which has no effect here.

    Where an index occurs several times, ``set`` keeps the last value; the other functions apply all updates.

    Source: ``jax.numpy.ndarray.at``.

    >>> import tvmfun.numpy as tnp
    >>> tnp.asarray([1, 2, 3]).at[1:].set(0)
    Array([1, 0, 0], dtype=int32)
    >>> tnp.asarray([1, 2, 3]).at[np.asarray([0, 0, 9])].add(10)
    Array([21,  2,  3], dtype=int32)
    """

    def __init__(self, x: Array, index: Any = _NOWHERE) -> None:
        self._x = x
        self._index = index

    def __getitem__(self, index: Any) -> At:
        return At(self._x, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("[at] arrays are immutable, got an assignment to an index. Try x = x.at[index].set(value).")

    def get(self, *, mode: str | None = None, fill_value: Any = None, **promises: bool) -> Array:
        """Returns ``x[index]``.

        Args:
            mode: the treatment of indices outside the array: ``"clip"`` gives the nearest element, ``"fill"`` or
                ``"drop"`` gives ``fill_value``. By default it is as for ``x[index]``.
            fill_value: by default NaN, for integers the one farthest from 0.
            promises: ``unique_indices`` and ``indices_are_sorted``, which make no difference.
        """
        _check_promises("get", promises)
        how = check_mode("at", mode, "in_bounds", "in_bounds")
        if self._index is _NOWHERE:
            return self._x
        if how == "wrap":
            raise ArgumentError("at", "indices do not wrap around", got=repr(mode), hint="index % size")
        if how == "in_bounds":
            return getitem(self._x, self._index)
        x, index = without_bools(self._x, self._index)
        return read(x, outside_as_arrays(x, normalized(x, index)), how, fill_value)

    def set(self, values: Any, **options: Any) -> Array:
        """Returns ``x`` with ``values`` at the indices."""
        return self._update("set", values, "set", **options)

    def add(self, values: Any, **options: Any) -> Array:
        """Returns ``x`` with ``values`` added at the indices."""
        return self._update("add", values, "add", **options)

    def subtract(self, values: Any, **options: Any) -> Array:
        """Returns ``x`` with ``values`` subtracted at the indices."""
        return self._update("subtract", negative(_values(self._x, values)), "add", **options)

    def multiply(self, values: Any, **options: Any) -> Array:
        """Returns ``x`` multiplied by ``values`` at the indices."""
        return self._update("multiply", values, "mul", **options)

    mul = multiply

    def divide(self, values: Any, **options: Any) -> Array:
        """Returns ``x`` divided by ``values`` at the indices."""
        return divide(self._x, self._product("divide", values, **options))

    def power(self, values: Any, **options: Any) -> Array:
        """Returns ``x`` to the power of ``values`` at the indices."""
        return pow(self._x, self._product("power", values, **options))

    def min(self, values: Any, **options: Any) -> Array:
        """Returns the minimum of ``x`` and ``values`` at the indices."""
        return self._update("min", values, "min", **options)

    def max(self, values: Any, **options: Any) -> Array:
        """Returns the maximum of ``x`` and ``values`` at the indices."""
        return self._update("max", values, "max", **options)

    def apply(self, function: Callable[[Array], Array], **options: Any) -> Array:
        """Returns ``x`` with an elementwise function applied at the indices, as often as each is named.

        With traced indices that is a loop, whose derivative in reverse mode keeps a step for each index;
        ``unique_indices=True`` says that one step is enough.

        >>> import tvmfun.numpy as tnp
        >>> tnp.asarray([1, 2, 3]).at[np.asarray([0, 0, 1])].apply(lambda x: 2 * x)
        Array([4, 4, 3], dtype=int32)
        """
        x, index = self._x, self._index
        if _is_traced_mask(index):
            return where(_mask_of(x, index), function(x), x)
        x, index = without_bools(x, index)
        if x is not self._x:
            return reshape(At(x, index).apply(function, **options), self._x.shape)
        if index is _NOWHERE:
            return self._update("apply", x, "set", **options)
        if not callable(function):
            raise ArgumentTypeError(
                "apply", "it takes a function of arrays", got=repr(function), hint="lambda x: 2 * x"
            )
        mode = "promise_in_bounds" if options.get("mode") in (None, "promise_in_bounds") else "clip"
        values = self.get(mode=mode)
        once = lambda values: _broadcast_values(_values(x, function(values)), values.shape)
        if options.get("unique_indices") or not values.size or not any(map(is_array, normalized(x, index))):
            return self._update("apply", once(values), "set", **options)
        none = shapes.broadcast_to(np.int32(0), shape=x.shape)
        counts = At(none, index)._update("apply", np.int32(1), "add", mode=options.get("mode"))
        return self._update("apply", _repeatedly(once, values, At(counts, index).get(mode=mode)), "set", **options)

    def _product(self, name: str, values: Any, **options: Any) -> Array:
        """The product of all values for each index, 1 where there are none."""
        return At(ones_like(self._x), self._index)._update(name, values, "mul", **options)

    def _update(self, name: str, values: Any, combine: str, **options: Any) -> Array:
        """An update, whose dtype is weak if that of the array is so."""
        updated = self._updated(name, values, combine, **options)
        return weakly_typed(updated) if self._x.weak_type else updated

    def _updated(
        self,
        name: str,
        values: Any,
        combine: str,
        *,
        mode: str | None = None,
        unique_indices: bool = False,
        **rest: Any,
    ) -> Array:
        x = self._x
        _check_promises(name, rest)
        if self._index is _NOWHERE:
            raise IndexingError("at", "an update needs an index", got=f"x.at.{name}", hint=f"x.at[...].{name}(values)")
        how = check_mode("at", mode, "fill", "fill")
        if how == "wrap":
            raise ArgumentError("at", "updates do not wrap around", got=repr(mode), hint="index % size")
        if _is_traced_mask(self._index):
            return _update_mask(x, self._index, values, combine)
        x, index = without_bools(x, self._index)
        if x is not self._x:
            updated = At(x, index)._updated(name, values, combine, mode=mode, unique_indices=unique_indices)
            return reshape(updated, self._x.shape)
        items = normalized(x, self._index)
        if mode is not None and how != "in_bounds":
            items = outside_as_arrays(x, items)
        values = _values(x, values)
        arrays = [item for item in items if is_array(item)]
        if not arrays:
            return _update_slices(x, items, values, combine)
        leading = items[: len(arrays)]
        if all(map(is_array, leading)) and all(item == slice(None) for item in items[len(arrays) :]):
            indices, shape = joined(x, items, list(range(len(arrays))))
            if how == "clip":
                indices = [clip(p, 0, size - 1) for p, size in zip(indices, x.shape, strict=False)]
            return _scatter(x, stacked(indices), values, shape + x.shape[len(arrays) :], combine, unique_indices)
        if is_immediate(x) or dims.is_dynamic(x.shape):
            # Any other index: number the elements, index the numbers, and update the flattened array there. Numbers
            # count from 1, because 0 is read outside of an array.
            numbers = shapes.iota(shape=(x.size + 1,), axis=0, dtype=_number_type(x))[1:]
            indices = read(reshape(numbers, x.shape), items, how, 0) - 1
            flat = _scatter(ravel(x), expand_dims(indices, -1), values, indices.shape, combine, unique_indices)
            return reshape(flat, x.shape)
        # While something is traced, index the numbers of each axis instead: nothing but the updates is computed.
        along = [shapes.iota(shape=x.shape, axis=axis, dtype=_number_type(x)) for axis in range(x.ndim)]
        positions = [read(numbers + 1, items, how, 0) - 1 for numbers in along]
        return _scatter(x, stacked(positions), values, positions[0].shape, combine, unique_indices)


def _number_type(x: Array) -> str:
    """The dtype of numbers of the elements of an array."""
    return "int64" if dims.always_le(2**31, x.size) else "int32"


def _repeatedly(function: Callable[[Array], Array], values: Array, times: Array) -> Array:
    """Each of the values with a function applied as often as ``times`` says."""

    def step(times: Array, i: Any, values: Array) -> list:
        return [add(i, np.int32(1)), where(pointwise.greater(times, i), function(values), values)]

    if isinstance(times, DeviceArray):
        for i in range(int(np.max(times.numpy()))):
            values = step(times, np.int32(i), values)[1]
        return values
    most = reduce.max(times, axis=tuple(range(times.ndim)))
    start = [shapes.broadcast_to(np.int32(0), shape=()), values]
    operands = control.LoopOperands((most,), times, start, ())
    results = control.run_loop(lambda times, carry, _: (step(times, *carry), ()), operands, "apply", length=times.size)
    return results.carry[1]


def _check_promises(name: str, promises: dict[str, Any]) -> None:
    unknown = promises.keys() - {"indices_are_sorted", "unique_indices"}
    if unknown:
        raise TypeError(f"[at] x.at[...].{name} got an unexpected argument {sorted(unknown)[0]!r}")


def _values(x: Array, values: Any) -> Array:
    """The values of an update of ``x``, converted to its dtype."""
    return convert("at", asarray(values) if isinstance(values, list | tuple) else values, x.dtype)


def _broadcast_values(values: Any, shape: tuple[int, ...]) -> Any:
    extra = values.ndim - len(shape)
    if extra > 0 and values.shape[:extra] == (1,) * extra:  # as in NumPy's assignments
        values = reshape(values, values.shape[extra:])
    if values.shape == shape:
        return values
    try:
        return shapes.broadcast_to(values, shape=shape)
    except ShapeError:
        raise ShapeError(
            "at", f"the values must broadcast to the shape of the elements, {shape}", got=repr(abstract(values))
        ) from None


def _scatter(x: Array, indices: Array, values: Any, shape: tuple[int, ...], combine: str, unique: bool) -> Array:
    if x.dtype == dtypes.bool_ and combine != "set":
        numbers = pointwise.astype(x, dtype="uint8"), pointwise.astype(values, dtype="uint8")
        result = _scatter(
            numbers[0], indices, numbers[1], shape, {"add": "max", "mul": "min"}.get(combine, combine), unique
        )
        return pointwise.astype(result, dtype="bool")
    return ops.scatter(x, indices, _broadcast_values(values, shape), mode=combine, unique=unique)


def _is_traced_mask(index: Any) -> bool:
    return isinstance(index, Tracer) and index.dtype == dtypes.bool_


def _mask_of(x: Array, mask: Array) -> Array:
    return reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))


def _update_mask(x: Array, mask: Array, values: Any, combine: str) -> Array:
    """Updates where a traced mask is true, with one value, because the number of indices is unknown."""
    values = _values(x, values)
    if values.ndim or mask.shape != x.shape[: mask.ndim]:
        raise ConcretizationError(
            "at",
            "a mask that is being traced takes one value and has the shape of the array",
            got=f"{mask.aval} for {x.aval}, values {abstract(values)}",
            hint="tvmfun.numpy.where(mask, values, x)",
        )
    return where(_mask_of(x, mask), _COMBINE[combine](x, values), x)


def _update_slices(x: Array, items: list[Any], values: Any, combine: str) -> Array:
    if is_immediate(x) and (isinstance(values, np.generic) or is_immediate(values)):
        return _update_now(x, numpy_index(x, items), np.asarray(values), combine)
    # The values, spread out and padded to the shape of `x`: a kernel without any index arrays.
    low, high, interior, sizes, flipped, shape = [], [], [], [], [], []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        if isinstance(item, slice):
            first, count, step = bounds(item, x.shape[axis])
            shape.append(count)
            if step < 0:
                first, step = first + (count - 1) * step, -step
                flipped.append(axis)
        else:
            first, count, step = static_integer(item, axis, x), 1, 1
        sizes.append(count)
        low.append(first)
        high.append(x.shape[axis] - first - (count - 1) * step - 1)
        interior.append(step - 1)
        axis += 1
    updates = reshape(_broadcast_values(values, tuple(shape)), tuple(sizes))
    if updates.size == 0:
        return x
    if flipped:
        updates = shapes.flip(updates, axes=tuple(flipped))
    margins = {"low": tuple(low), "high": tuple(high), "interior": tuple(interior)}
    # Adding -0.0 changes no number, but adding 0.0 would turn -0.0 into 0.0.
    spread = shapes.pad(updates, x.dtype.type(-0.0), **margins)
    if combine == "add":
        return add(x, spread)
    here = shapes.broadcast_to(np.bool_(True), shape=tuple(sizes))
    return where(shapes.pad(here, np.bool_(False), **margins), _COMBINE[combine](x, spread), x)


def _update_now(x: Array, index: tuple, values: np.ndarray, combine: str) -> Array:
    result = np.array(x.concrete("at").numpy())
    try:
        result[index] = _NUMPY_COMBINE[combine](result[index], values)
    except ValueError:
        got = f"{dtypes.NAMES[x.dtype]}{list(values.shape)}"
        raise ShapeError(
            "at", f"the values must broadcast to the shape of the elements, {result[index].shape}", got=got
        ) from None
    return device_array(result)
