"""The ahead-of-time stages of a jitted function: lowered, then compiled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tvm.target import Target

from tvmfun.core import dims
from tvmfun.core.program import Immutable, Program
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ConcretizationError, ProgramError, TargetError
from tvmfun.execute import LoadedProgram, as_device_array, input_positions, moved
from tvmfun.export import writer
from tvmfun.lower import cache
from tvmfun.lower.cost_analysis import CostAnalysis, cost_analysis
from tvmfun.lower.target import from_json
from tvmfun.lower.tuning.database import ACTIVE, using
from tvmfun.profiling import Profile, profile
from tvmfun.program_text import files
from tvmfun.runtime.cuda.executable import CudaExecutable, DynamicCudaExecutable
from tvmfun.runtime.devices import CPU
from tvmfun.runtime.executables import NativeExecutable
from tvmfun.runtime.plan import DynamicPlan, MemoryAnalysis
from tvmfun.tree_flattener import expectation, never_matches
from tvmfun.typing import PyTree


class Lowered(Immutable):
    """A traced function, ready to be compiled; made by ``jit(f).lower(...)``."""

    def __init__(
        self, program: Program, target: Target, donated: Sequence[int] = (), names: Sequence[str] = ()
    ) -> None:
        self.program = program
        self.target = target
        self.donated = donated
        self._names = names

    def __reduce__(self) -> Any:
        return _lowered, (self.program, str(self.target), self.donated, self._names)

    def as_text(self, dialect: str = "program") -> str:
        """The Program as text: its equations, or (``dialect="relax"``) the Relax function as TVMScript."""
        if dialect not in ("program", "relax"):
            raise ArgumentError("as_text", "the dialect must be 'program' or 'relax'", got=repr(dialect))
        return self.program.text if dialect == "program" else self.program.function.script()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the Program, its target and its donated arguments into a text file, as :meth:`tvmfun.Program.save`.

        Calls that hold Python functions, such as custom derivatives, are replaced by their equations.

        Args:
            path: the file to write or replace.

        Raises:
            ProgramError: if arguments or results are of a class that cannot be found by its name.
            OSError: if the file cannot be written.
        """
        more = {"target": json.loads(str(self.target)), "names": list(self._names)}
        files.save(self.program, path, inline=True, arguments=self._names, donated=self.donated, more=more)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, allow_edits: bool = False) -> Lowered:
        """Reads a lowered function that :meth:`save` wrote; nothing of the file is run.

        Args:
            path: the file.
            allow_edits: whether the text may have been edited, so that it has another checksum.

        Raises:
            ProgramError: if it is truncated, altered, of another format, or a Program that was not lowered.
            TargetError: if TVM cannot make a target of its target.
            OSError: if it cannot be read.
        """
        try:
            program, manifest = files.load(path, allow_edits)
            described, names = manifest.get("target"), manifest.get("names")
            if not isinstance(described, dict) or not isinstance(names, list):
                what = f"{path} has a Program that was not lowered"
                raise ProgramError("Lowered.load", what, got="no target", hint="tvmfun.Program.load")
            count = sum(group.num_children for group in program.in_tree.children())
            if len(names) != count or not all(isinstance(name, str) for name in names):
                raise ProgramError("Lowered.load", f"there must be names of {count} arguments", got=repr(names))
        except ProgramError as error:
            error.rename("Lowered.load")
            raise
        donated = [i for i, leaf in enumerate(manifest["inputs"]) if leaf.get("donated") is True]
        return cls(program, from_json(described), donated, names)

    def compile(self) -> Compiled:
        """Generates code."""
        return Compiled(self.program, self.target, self.donated, self._names)


def _lowered(program: Program, target: str, donated: Sequence[int], names: Sequence[str]) -> Lowered:
    """The lowered function of a pickle."""
    return Lowered(program, Target(json.loads(target)), donated, names)


class Compiled(Immutable):
    """A compiled function, for arguments of exactly the types it was lowered for; made by ``Lowered.compile()``.

    A pickle has the Program; it is compiled again where it is loaded, or read from the disk cache there.
    """

    def __init__(
        self, program: Program, target: Target, donated: Sequence[int] = (), names: Sequence[str] = ()
    ) -> None:
        self.program = program
        self.target = target
        self.donated = donated
        self._names = names
        self._tuning = ACTIVE.database
        self.executable = cache.compile_program(program, target, input_positions(program, donated))

    def __reduce__(self) -> Any:
        return _compiled, (self.program, str(self.target), self.donated, self._names)

    def as_text(self) -> str:
        """The scheduled kernels and the function that calls them, as TVMScript.

        Without a compiler of CUDA, the first line says that kernels for a GPU were not compiled any further.
        """
        with using(self._tuning):
            text = cache.text(self.program, self.target, input_positions(self.program, self.donated))
        is_for_gpu = isinstance(self.executable, CudaExecutable | DynamicCudaExecutable)
        missing = is_for_gpu and self.executable.module.missing
        return f"# not compiled to machine code: {missing}\n{text}" if missing else text

    def memory_analysis(self, sizes: Mapping[str, int] | None = None) -> MemoryAnalysis:
        """The memory of a call in bytes, from the memory plan.

        Args:
            sizes: the dynamic sizes, by name.

        Raises:
            ArgumentError: if other sizes are given than the function has, or one is out of its bounds.
            ShapeError: if an array would have too many elements.

        Source: follows ``jax.stages.Compiled.memory_analysis``.

        >>> import tvmfun
        >>> step = tvmfun.jit(lambda w, x: w - 0.5 * (x.T @ (x @ w)), donate_argnums=0)
        >>> w, x = tvmfun.ShapeDtype((64, 8), "float32"), tvmfun.ShapeDtype((32, 64), "float32")
        >>> step.lower(w, x).compile().memory_analysis()
        MemoryAnalysis(arguments=10240, outputs=0, aliased=2048, temporaries=1024, workspaces=...)

        For a function with a dynamic batch, at one size:

        >>> w, x = tvmfun.ShapeDtype((64, 8), "float32"), tvmfun.ShapeDtype(("b", 64), "float32")
        >>> step.lower(w, x).compile().memory_analysis({"b": 16})
        MemoryAnalysis(arguments=6144, outputs=0, aliased=2048, temporaries=512, workspaces=...)
        """
        sizes = sizes or {}
        dims.check_values("memory_analysis", self.program.sizes, sizes)
        sizes = {name: int(size) for name, size in sizes.items()}  # not NumPy's, which overflow
        cache.check_sizes(self.program, sizes)
        plan = self.executable.plan
        return (plan.at(sizes)[0] if isinstance(plan, DynamicPlan) else plan).analysis

    def cost_analysis(self) -> CostAnalysis:
        """Counts the floating-point operations of a call, and the bytes that its kernels read and write.

        Source: follows ``jax.stages.Compiled.cost_analysis``.

        >>> import tvmfun
        >>> x = tvmfun.ShapeDtype((64, 64), "float32")
        >>> tvmfun.jit(lambda x: x @ x + 1).lower(x).compile().cost_analysis()
        CostAnalysis(flops=528384, bytes=32768)
        """
        return cost_analysis(self.program, self.target, input_positions(self.program, self.donated))

    def profile(self, *args: PyTree, **kwargs: PyTree) -> Profile:
        """Runs it some times with a clock between its kernels, on copies of the arguments.

        It is compiled anew, since ordinary code has no clock. Other programs on the machine disturb it.

        Raises:
            TargetError: for a GPU, another processor, or where sizes are dynamic.
            TreeError: if the arguments have another structure.
            ShapeError: if a leaf has another shape or dtype.

        >>> import numpy as np
        >>> import tvmfun
        >>> x = np.ones((256, 256), "float32")
        >>> print(tvmfun.jit(lambda x: x @ x + 1).lower(x).compile().profile(x))  # doctest: +SKIP
        <lambda>: 219.6 us in 1 kernels, median of 200 runs; floors by 190 Gflop/s, 21.3 GB/s
           us  share  calls  of floor  rule         kernel             at
        219.6   100%      1       81%  contraction  dot_general_add_0  <stdin>:1
        """
        if not isinstance(self.executable, NativeExecutable):
            raise TargetError("profile", "only kernels of static sizes on the CPU can be timed")
        leaves = self.program.check_arguments(args, kwargs)
        loaded = self._loaded
        arrays, _ = moved([as_device_array(leaf, "profile") for leaf in leaves], loaded)
        with using(self._tuning):
            positions = input_positions(self.program, self.donated)
            return profile(self.program, self.target, positions, [*loaded.captured, *arrays])

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        targets: Sequence[Any] | None = None,
        values: Mapping[str, PyTree] | None = None,
        compiler: str | Sequence[str] | None = None,
    ) -> None:
        """Writes it as a shared library with a C ABI, which needs libc, libm and POSIX threads, but not TVM or Python.

        :func:`tvmfun.export.load` runs it from Python, ``tvmfun/step.hpp`` from C++. A library for GPUs needs NVIDIA's
        driver where it runs; ``tvmfun/cuda.hpp`` runs it from C++.

        Args:
            path: the file to write; an existing one is replaced.
            targets: CPUs of one architecture to compile for, instead of its own target: the names of processors, such
                as ``"x86-64-v3"``, or targets as of ``jit``. The library has the code of all, and runs that of the
                first one that the processor can run. Or GPUs of several architectures, such as
                ``{"kind": "cuda", "arch": "sm_90a"}``.
            values: initial values for arguments, by name, to be stored in the library.
            compiler: the command of a C compiler, such as ``"gcc"``; by default ``CC``, or a compiler that is found
                for the architecture.

        Raises:
            ArgumentError: if the targets are no list, or the values no dict.
            ExportError: without a C compiler; for a GPU, without a compiler of CUDA or with dynamic sizes.
            TreeError: if an initial value has another structure than its argument.
            OSError: if the file cannot be written.

        >>> import tvmfun
        >>> x = tvmfun.ShapeDtype((2, 3), "float32")
        >>> compiled = tvmfun.jit(lambda x: 2 * x).lower(x).compile()
        >>> compiled.export("twice.so", targets=["x86-64-v4", "x86-64-v3", "x86-64-v2"])  # doctest: +SKIP
        """
        if isinstance(targets, str | Mapping):
            raise ArgumentError("export", "the targets are a list", got=repr(targets), hint=f"targets=[{targets!r}]")
        if values is not None and not isinstance(values, Mapping):
            hint = "values={'params': params}"
            raise ArgumentError("export", "the values are a dict by argument", got=type(values).__name__, hint=hint)
        chosen = [self.target] if targets is None else targets
        with using(self._tuning):
            positions = input_positions(self.program, self.donated)
            writer.write(self.program, chosen, positions, self._names, path, values or {}, compiler)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Runs it.

        Raises:
            TreeError: if the arguments have another structure.
            ShapeError: if a leaf has another shape or dtype.
        """
        loaded = self._loaded
        taken = self._expect((args, kwargs))
        if taken and min(taken[1], default=0) >= 0:  # addresses elsewhere than on the CPU are negative
            outputs = loaded(*taken)
            return outputs[0] if loaded.single else loaded.unflatten(outputs)
        leaves = self.program.check_arguments(args, kwargs)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise ConcretizationError(
                "Compiled", "machine code cannot be traced", got=self.program.name, hint="the function that jit made"
            )
        arrays, addresses = moved([as_device_array(leaf) for leaf in leaves], loaded)
        if self.program.sizes:
            loaded = loaded.at(self.program.solve([array.aval for array in arrays]))
        outputs = loaded(arrays, addresses)
        return loaded.unflatten(outputs)

    @cached_property
    def _expect(self) -> Callable[[PyTree], tuple[list, list[int]] | None]:
        """Returns the arrays and addresses of arguments of these types, and None for most others."""
        is_direct = self._loaded.device == CPU and not self.program.sizes
        return expectation(self.program.in_tree, self.program.in_avals) if is_direct else never_matches

    @cached_property
    def _loaded(self) -> LoadedProgram:
        # Loaded at the first call, because compiling for a device does not need the device.
        return LoadedProgram(self.program, self.target, self.donated, executable=self.executable)


def _compiled(program: Program, target: str, donated: Sequence[int], names: Sequence[str]) -> Compiled:
    """The compiled function of a pickle."""
    return _lowered(program, target, donated, names).compile()
