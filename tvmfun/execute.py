"""Runs Programs and single ops on arrays with data, when nothing is traced; moves trees of arrays between devices."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from threading import local
from typing import Any

import numpy as np
from tvm.target import Target

from tvmfun import dtypes, tree
from tvmfun.core import dims
from tvmfun.core.array import (
    DeviceArray,
    ShapeDtype,
    device_array,
    duplicate,
    foreign_array,
    interned,
    move,
)
from tvmfun.core.dims import Dim
from tvmfun.core.donation import Donation, claim, discard, restore
from tvmfun.core.inline import inlined
from tvmfun.core.interpreter import install_evaluator
from tvmfun.core.leaf import abstract, scalar
from tvmfun.core.literals import ChangingNumbers
from tvmfun.core.op import Op
from tvmfun.core.program import Equation, Program, Variable
from tvmfun.core.source import user_line
from tvmfun.core.trace import Tracer
from tvmfun.errors import DeviceError, DtypeError, NanError, TargetError
from tvmfun.lower import cache
from tvmfun.lower import target as targets
from tvmfun.lower.tuning.database import ACTIVE
from tvmfun.runtime import devices
from tvmfun.runtime.cuda.devices import device_at
from tvmfun.runtime.cuda.executable import DynamicCudaExecutable
from tvmfun.runtime.devices import CPU
from tvmfun.runtime.executables import DynamicExecutable, items_at
from tvmfun.runtime.memory import clear_memory
from tvmfun.typing import ArrayLike, PyTree

_ADDRESS = attrgetter("address")
# A Program stays loaded for at most this many sets of dynamic sizes.
_SIZES_KEPT = 1024


# -- Programs ------------------------------------------------------------------------------------------------------


def as_device_array(leaf: Any, where: str = "jit") -> DeviceArray:
    """Converts a leaf of the arguments to an array with data."""
    if isinstance(leaf, DeviceArray):
        return leaf
    if isinstance(leaf, Tracer):
        leaf.concrete(where)  # always raises
    if dtypes.is_scalar(leaf):
        return device_array(scalar(leaf), weak=True)
    if isinstance(leaf, np.generic | np.ndarray):
        return device_array(leaf)
    if isinstance(leaf, Dim):
        int(leaf)  # always raises
    if isinstance(leaf, ShapeDtype):
        raise DtypeError(where, "a call needs arrays", got=repr(leaf), hint="eval_shape, trace, or jit(f).lower(...)")
    abstract(leaf, where)  # raises if it cannot be an array
    return foreign_array(leaf, where)


def on_one_device(arrays: list[DeviceArray], leaves: Sequence[Any]) -> list[DeviceArray]:
    """Moves arrays converted from numbers and other libraries to the GPU of the others, if those are on one."""
    used = [array.device for array, leaf in zip(arrays, leaves, strict=True) if array is leaf]
    if CPU in used or not used:
        return arrays
    return [move(array, used[0]) if array is not leaf else array for array, leaf in zip(arrays, leaves, strict=True)]


def common_device(arrays: Sequence[DeviceArray], where: str) -> Any:
    """Returns the device of all arrays; the CPU if there are none.

    Raises:
        TargetError: if they are on several.
    """
    device = None
    for array in arrays:
        if device is None:
            device = array.device
        elif array.device != device:
            raise TargetError(
                where,
                "all arrays must be on one device",
                got=f"{device} and {array.device}",
                hint="tvmfun.device_put(tree, device)",
            )
    return device or CPU


def target_of(device: Any) -> Target:
    """Returns the target to compile for a device."""
    return targets.host() if device == CPU else targets.resolve(device_at(device.index).target())


class LoadedProgram:
    """A compiled Program with its captured arrays on the device.

    Args:
        program: the Program to compile.
        target: the target to compile for.
        donated: the indices of the leaves whose buffers may be overwritten.
        device: a device of the target's kind; None for the first one.
        executable: the Program compiled, if it has been.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        donated: Sequence[int] = (),
        device: Any = None,
        executable: cache.Executable | None = None,
    ) -> None:
        if targets.is_cpu(target):
            targets.check_runs_here(program.name, target)
        self.program = program
        self.donated = donated
        self.pick_donated = items_at(donated)
        self.target = target
        if executable is None:
            executable = cache.compile_program(program, target, input_positions(program, donated))
        is_other = device is not None and device.dlpack_device_type() == executable.device.dlpack_device_type()
        self.executable = executable.at(device) if is_other else executable
        self._run: Any = self.executable
        self.device = self.executable.device
        if not devices.exists(self.device):
            raise TargetError(
                program.name, "it is compiled for a device this machine lacks", got=str(self.device), hint="target=None"
            )
        self.captured = [move(as_device_array(array), self.device) for array in program.captured]
        self.out_avals = tuple(map(interned, program.out_avals))
        self.single = program.out_tree.is_leaf()
        self.unflatten = program.out_tree.unflatten
        self.aliases = list(_aliases(program, donated))
        self.sizes: dict[str, int] = {}
        self._at: dict[tuple[int, ...], LoadedProgram] = {}

    def at(self, sizes: dict[str, int]) -> LoadedProgram:
        """Returns this Program for arguments of these dynamic sizes."""
        if not sizes:
            return self
        key = tuple(sizes.values())
        if key in self._at:
            return self._at[key]
        cache.check_sizes(self.program, sizes)
        loaded = copy(self)
        loaded.sizes = sizes
        if isinstance(self.executable, DynamicExecutable | DynamicCudaExecutable):
            loaded._run = self.executable.at_sizes(sizes)
        loaded.out_avals = tuple(interned(replace(a, shape=dims.at(a.shape, sizes))) for a in self.out_avals)
        if len(self._at) >= _SIZES_KEPT:
            self._at.clear()
        self._at[key] = loaded
        return loaded

    def __call__(self, arrays: list[DeviceArray], addresses: list[int]) -> list[DeviceArray]:
        """Runs the Program on arrays and their addresses; donated arrays are deleted.

        Raises:
            DonatedArrayError: if a donated array has been donated already.
        """
        inputs = arrays
        captured = addresses_of(self.captured) if self.captured else []
        copied: list[tuple[DeviceArray, int]] = []
        if self.donated:
            exclusive = donated = self.pick_donated(arrays)
            claimed = self.pick_donated(addresses)
            reading = claim(donated, claimed, self.program.name, lists=2)
            if reading or _STATE.debug_nans:
                reading = reading or [0] * len(donated)
                arrays, addresses, copied = self._unshared(arrays, addresses, reading)
                # An array with readers stays alive, with its memory, which cannot be overwritten.
                exclusive = [a for a, count in zip(donated, reading, strict=True) if count == hasattr(a, "shared")]
        if captured:
            inputs, arrays, addresses = self.captured + inputs, self.captured + arrays, captured + addresses
        try:
            memories, out_addresses = self._run(arrays, addresses, self.out_avals)
        except BaseException as error:
            restore(copied)
            if isinstance(error, DeviceError) and error.kernel:
                self._name_lines(error)
            raise
        if self.single:  # faster than `map`, which matters to small functions
            outputs = [DeviceArray(memories[0], out_addresses[0], self.out_avals[0])]
        else:
            outputs = list(map(DeviceArray, memories, out_addresses, self.out_avals))
        for output, source in self.aliases:
            outputs[output].shared = out_addresses[output]
            if source is not None:
                inputs[source].shared = addresses[source]
        if _STATE.debug_nans and any(map(_has_nan, outputs)):
            restore(copied)
            program = self.program.with_sizes(self.sizes)
            _blame(program, inputs)
        if self.donated:
            donation: Donation = self._receiver, list(map(id, donated))
            for array in exclusive:
                array.memory = donation  # type: ignore[assignment]  # readers get the address first, which fails
        return outputs

    def _name_lines(self, error: DeviceError) -> None:
        """Adds the user's lines of a kernel that failed."""
        donated = input_positions(self.program, self.donated)
        lines = cache.lines_of(self.program, self.target, donated, error.kernel)
        error.got += f" at {', '.join(lines)}" * bool(lines)
        error.rename(error.where)

    def _receiver(self, position: int) -> str:
        """The name of the function and of a donated argument, for errors."""
        return f"{self.program.name} as {self.program.leaf_name(self.donated[position])}"

    def _unshared(self, arrays: list[DeviceArray], addresses: list[int], reading: Sequence[int]) -> tuple:
        """Copies the donated arrays that have other readers, now or later.

        Args:
            arrays: all arguments.
            addresses: their addresses.
            reading: the number of other readers of each donated array.

        Returns:
            Arrays and addresses with the copies, and the originals with their addresses.
        """
        arrays, addresses, copied = arrays.copy(), addresses.copy(), []
        originals = [(i, arrays[i], addresses[i]) for i in self.donated]
        try:
            for (i, array, address), count in zip(originals, reading, strict=True):
                if count or _STATE.debug_nans:
                    arrays[i] = duplicate(array, address)
                    addresses[i] = arrays[i].address
                    copied.append((array, address))
        except BaseException:  # for example out of memory
            restore((array, address) for _, array, address in originals)
            raise
        return arrays, addresses, copied


def addresses_of(arrays: Sequence[DeviceArray]) -> list[int]:
    """Returns the addresses of arrays.

    Raises:
        DonatedArrayError: if one was donated.
    """
    try:
        return list(map(_ADDRESS, arrays))
    except AttributeError:
        return [array.held() for array in arrays]  # always raises


def moved(arrays: list[DeviceArray], loaded: LoadedProgram) -> tuple[list[DeviceArray], list[int]]:
    """Moves arrays to the device of a Program and returns them with their addresses; deletes donated originals."""
    there = [move(array, loaded.device) for array in arrays]
    discard([arrays[i] for i in loaded.donated if there[i] is not arrays[i]], loaded.program.name)
    return there, addresses_of(there)


def input_positions(program: Program, donated: Sequence[int]) -> list[int]:
    """Returns the positions of leaves among all inputs, which begin with the captured arrays."""
    return [len(program.captured) + i for i in donated]


def _aliases(program: Program, donated: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """Finds the results that share a buffer with an input that is not donated, or with another result.

    Yields:
        The index of the result, and the index of the input or None.
    """
    program = inlined(program)
    source = {equation.outputs[0]: equation.inputs[0] for equation in program.equations if equation.op.view}
    indices = {variable: i for i, variable in enumerate(program.inputs)}
    overwritten = {program.inputs[i] for i in input_positions(program, donated)}
    roots = []
    for atom in program.outputs:
        while atom in source:
            atom = source[atom]
        roots.append(atom)
    uses = Counter(root for root in roots if isinstance(root, Variable))
    for output, root in enumerate(roots):
        if root in indices and root not in overwritten:
            yield output, indices[root]
        elif uses[root] > 1:
            yield output, None


_NUMBERS = ChangingNumbers()


def _run_program(program: Program, leaves: list) -> list:
    """Compiles and runs a Program. Numbers that change from call to call become arguments, so as to compile once."""
    sizes = program.solve([abstract(leaf, program.name) for leaf in leaves]) if program.sizes else {}
    program, numbers = _NUMBERS.separated(program)
    leaves = numbers + leaves
    arrays = on_one_device([as_device_array(leaf, program.name) for leaf in leaves], leaves)
    device = common_device(arrays, program.name)
    return LoadedProgram(program, target_of(device), device=device).at(sizes)(arrays, addresses_of(arrays))


# -- ops one by one -------------------------------------------------------------------------------------------------

_OPS: OrderedDict[tuple, LoadedProgram] = OrderedDict()
_OPS_KEPT = 1024


def _run_op(op: Op, args: tuple, params: dict) -> Any:
    """Applies one op to arrays. Numbers are passed as arrays, so that a different number does not recompile."""
    arrays = [_operand(arg, op) for arg in args]
    device = arrays[0].device if arrays else CPU
    if any(array.device != device for array in arrays[1:]):
        # Arrays made on the CPU, such as masks and indices, go to the GPU of the others.
        device = common_device([array for array in arrays if array.device != CPU], op.name)
        arrays = [move(array, device) for array in arrays]
    if op.view:
        return _view(op, arrays[0], params)
    key = (op.name, tuple(params.items()), tuple(array.aval for array in arrays), device, ACTIVE.key)
    loaded = _OPS.get(key)
    if loaded is None:
        avals = op.shape(*(array.aval for array in arrays), **params)
        outputs = tuple(map(Variable, avals)) if isinstance(avals, tuple) else (Variable(avals),)
        inputs = tuple(Variable(array.aval) for array in arrays)
        program = Program(
            inputs,
            (Equation(op, inputs, params, outputs, user_line()),),
            outputs,
            tree.structure((inputs, {})),
            tree.structure(outputs if isinstance(avals, tuple) else outputs[0]),
            name=op.name,
        )
        _OPS[key] = loaded = LoadedProgram(program, target_of(device), device=device)
        if len(_OPS) > _OPS_KEPT:
            _OPS.popitem(last=False)
    results = loaded(arrays, addresses_of(arrays))
    return results[0] if loaded.single else tuple(results)


def _view(op: Op, array: DeviceArray, params: dict) -> DeviceArray:
    """The elements of an array with the shape that an op gives them, in the same memory."""
    aval = op.shape(array.aval, **params)
    assert isinstance(aval, ShapeDtype)  # a view is one result
    array.shared = address = array.held()
    result = DeviceArray(array.memory, address, interned(aval))
    result.shared = address
    return result


def _operand(value: Any, op: Op) -> DeviceArray:
    # Within the library a NumPy scalar is a Python scalar whose dtype has been decided.
    if isinstance(value, np.generic):
        # Who gets a view may write to it by way of another library.
        return device_array(value, weak=True) if op.view else _number(value.dtype, value.tobytes())
    return as_device_array(value, op.name)


@lru_cache(maxsize=1024)
def _number(dtype: np.dtype, content: bytes) -> DeviceArray:
    """A number as an array, which takes longer to make than to add to another one."""
    return device_array(np.frombuffer(content, dtype)[0], weak=True)


install_evaluator(_run_op, _run_program)


# -- NaNs -----------------------------------------------------------------------------------------------------------


class _State(local):
    debug_nans = False


_STATE = _State()


@contextmanager
def debug_nans(enabled: bool = True) -> Iterator[None]:
    """Within this context, a NaN in a result raises a ``NanError`` that names the op that made it.

    A compiled function whose result has a NaN is run again op by op to find the culprit.

    >>> import tvmfun.numpy as tnp
    >>> with debug_nans():
    ...     tnp.log(tnp.asarray(-1.0))
    Traceback (most recent call last):
    tvmfun.errors.NanError: [log] the op made a NaN, got arguments within [-1, -1]...
    """
    before, _STATE.debug_nans = _STATE.debug_nans, enabled
    try:
        yield
    finally:
        _STATE.debug_nans = before


def _has_nan(array: DeviceArray) -> bool:
    return dtypes.is_float(array.dtype) and bool(np.isnan(array.read(lambda view: view.astype(np.float64))).any())


def _blame(program: Program, inputs: list[DeviceArray]) -> None:
    """Runs the equations one by one and raises for the first that makes a NaN."""
    for array, variable in zip(inputs, program.inputs, strict=True):
        if _has_nan(array):
            leaf = program.inputs.index(variable) - len(program.captured)
            which = program.leaf_name(leaf) if leaf >= 0 else "a captured array"
            raise NanError(program.name, f"{which} has a NaN already", got=repr(array.aval))

    def check(equation: Equation, arguments: list) -> Any:
        result = _run_op(equation.op, tuple(arguments), equation.params)
        for array in result if isinstance(result, tuple) else (result,):
            if _has_nan(array):
                if equation.op.kind == "call":
                    equation.op.compute("cpu", **equation.params).evaluate(arguments, check)
                _raise_nan(equation, arguments)
        return result

    with debug_nans(False):
        program.evaluate(inputs, check)


def _raise_nan(equation: Equation, arguments: list) -> None:
    values = [np.asarray(a, np.float64) for a in arguments if np.size(a)]
    low, high = min(v.min() for v in values), max(v.max() for v in values)
    source = f" at {equation.source}" if equation.source else ""
    raise NanError(
        equation.op.name,
        "the op made a NaN",
        got=f"arguments within [{low:g}, {high:g}]{source}",
        hint="keeping its arguments in the op's domain",
    )


# -- devices ---------------------------------------------------------------------------------------------------------


def device_put(x: PyTree, device: Any = "cpu") -> PyTree:
    """Returns the tree with every leaf an array on ``device`` (``"cpu"``, ``"cuda"``, ``"cuda:1"``).

    Arrays that are being traced stay as they are: a compiled function runs on one device.

    Raises:
        TargetError: if this machine has no such device.

    >>> device_put({"w": [1.0, 2.0]}, "cpu")["w"][1]
    Array(2., dtype=float32)
    """
    target = devices.device(device)
    return tree.map(
        lambda leaf: leaf if isinstance(leaf, Tracer) else move(as_device_array(leaf, "device_put"), target), x
    )


def device_get(x: PyTree) -> PyTree:
    """Returns the tree with every array as a NumPy array; arrays that are being traced stay as they are.

    Source: ``jax.device_get``.

    >>> device_get(device_put({"w": 1.5}))
    {'w': array(1.5, dtype=float32)}
    """
    return tree.map(lambda leaf: leaf.numpy() if isinstance(leaf, DeviceArray) else leaf, x)


def block_until_ready(x: PyTree) -> PyTree:
    """Waits until the devices have computed all arrays of a tree, and returns the tree.

    Source: ``jax.block_until_ready``.

    >>> block_until_ready({"w": device_put(1.5), "name": "kept"})
    {'w': Array(1.5, dtype=float32), 'name': 'kept'}
    """
    return tree.map(lambda leaf: leaf.block_until_ready() if isinstance(leaf, DeviceArray) else leaf, x)


def typeof(x: ArrayLike) -> ShapeDtype:
    """Returns the shape and the dtype of an array or a number.

    Source: ``jax.typeof``.

    >>> typeof(1.5)
    float32[]
    """
    return abstract(x, "typeof")


def clear_caches() -> None:
    """Frees the compiled ops, Programs and kernels of this process.

    Functions made by :func:`jit` keep their modules; the disk cache stays.
    """
    _OPS.clear()
    _NUMBERS.clear()
    cache.clear_caches()
    clear_memory()
