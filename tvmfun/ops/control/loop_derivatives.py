"""Derivatives of loops: reverse mode is a second loop in reverse order, forward mode one loop over pairs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tvmfun.core.derivative import evaluate_linear, flat_program, pushforward, trace_leaves, zeros
from tvmfun.core.dims import typical
from tvmfun.core.program import Equation, Program, Variable
from tvmfun.errors import GradientError
from tvmfun.ops import pointwise as pw
from tvmfun.ops.control.closed_programs import SplitDerivative, influenced, split_derivative
from tvmfun.ops.control.operands import LoopOperands, fixpoint, run_loop
from tvmfun.ops.dot import dot_general


def _live(body: Program, flags: LoopOperands) -> tuple[LoopOperands, list[bool]]:
    """The inputs and the outputs of a body that are active at some step, if these operands are."""
    n = len(flags.carry)
    carry = fixpoint(flags.carry, lambda now: influenced(body, flags._replace(carry=now).of_body)[:n])
    live = flags._replace(carry=carry)
    return live, [*carry, *influenced(body, live.of_body)[n:]]


# -- forward mode ------------------------------------------------------------------------------------------------------


def loop_pushforward(operands, tangents, *, body, cond, length, reverse, **roles):
    """One loop over values and tangents together."""
    values, directions = LoopOperands.split(operands, **roles), LoopOperands.split(tangents, **roles)
    is_moving = LoopOperands(*(tuple(t is not None for t in role) for role in directions))
    live, live_out = _live(body, is_moving)
    n = len(values.carry)

    def step(consts: Any, carry: Any, row: Any) -> tuple:
        primals, moving = (LoopOperands((), *roles).of_body for roles in zip(consts, carry, row, strict=True))
        outs, moved = pushforward(body, primals, moving)
        filled = _instantiate_zeros(moved, outs, live_out)
        return (outs[:n], filled[:n]), (outs[n:], filled[n:])

    results = run_loop(
        step,
        LoopOperands(
            values.count,
            (values.consts, directions.consts),
            (values.carry, _instantiate_zeros(directions.carry, values.carry, live.carry)),
            (values.xs, directions.xs),
        ),
        body.name,
        length=length,
        reverse=reverse,
        condition=cond and (lambda consts, carry: cond.evaluate([*consts[0], *carry[0]])),
        condition_name=cond.name if cond else "",
    )
    (carry, t_carry), (ys, t_ys), steps = results
    return (*carry, *ys, *steps), [*t_carry, *t_ys, *(None for _ in steps)]


def _instantiate_zeros(tangents: Sequence[Any], like: Sequence[Any], live: Sequence[bool]) -> list:
    """Tangents with zeros for None where they are live, and None elsewhere."""
    return [None if not flag else zeros(x) if t is None else t for t, x, flag in zip(tangents, like, live, strict=True)]


# -- reverse mode ------------------------------------------------------------------------------------------------------


def loop_pullback(active, *operands, body, cond, length, reverse, **roles):
    """Reverse mode: the forward loop keeps the residuals of each step; a loop in reverse order reads them."""
    if cond is not None and length is None:
        raise GradientError(
            "grad",
            "reverse mode through a while_loop keeps the carry of every step and needs a bound on their number",
            got="a while_loop without max_steps, or a fori_loop whose bounds are traced",
            hint="while_loop(cond, body, init, max_steps=1000), bounds that are Python integers, or forward mode",
        )
    values = LoopOperands.split(operands, **roles)
    live, live_out = _live(body, LoopOperands.split(active, **roles))
    free = LoopOperands((), [True] * len(values.consts), [False] * len(values.carry), [True] * len(values.xs))
    parts = split_derivative(body, live.of_body, live_out, free.of_body)
    with_captured = values._replace(consts=(*parts.captured, *values.consts))
    if cond is not None:
        cond = _with_more_consts(cond, parts)
    results = with_captured.run(parts.forward, cond, length, reverse)
    visible = len(body.outputs)
    steps = results[visible + len(parts.kept) :]
    reverse_loop = _ReverseLoop(
        body,
        parts,
        [i for i, flag in enumerate(live_out) if flag],
        values,
        results[:visible],
        dict(zip(parts.forward.inputs, with_captured.consts, strict=False)),
        dict(zip(parts.inputs[len(values.of_condition) :], values.xs, strict=True)),
        dict(zip(parts.kept, results[visible:], strict=False)),
        steps,
        length,
        not reverse,
    )
    return (*results[:visible], *steps), reverse_loop.pull


def _with_more_consts(cond: Program, parts: SplitDerivative) -> Program:
    """The condition of a forward loop: it ignores the captured values of the body."""
    n = len(parts.captured)
    if not n:
        return cond
    types = [v.aval for v in (*parts.forward.inputs[:n], *cond.inputs)]
    return trace_leaves(lambda *values: cond.evaluate(values[n:]), types, cond.name)


class _ReverseLoop(NamedTuple):
    """The backward pass of a loop.

    Args:
        body: its body.
        parts: the two halves of the body's derivative.
        seeded: the indices of the outputs that may have a cotangent.
        values: the operands of the loop.
        results: its results.
        outside: the values of the variables that are the same at every step.
        rows: the stacked values of the variables that are rows of operands.
        saved: the stacked values of the variables that the forward pass kept.
        steps: the number of steps that ran, if a condition decided it.
        length: the number of steps, or their bound.
        reverse: whether the backward pass goes from the last row to the first.
    """

    body: Program
    parts: SplitDerivative
    seeded: list[int]
    values: LoopOperands
    results: Sequence[Any]
    outside: dict[Variable, Any]
    rows: dict[Variable, Any]
    saved: dict[Variable, Any]
    steps: Sequence[Any]
    length: Any
    reverse: bool

    def pull(self, gs: Sequence[Any]) -> list:
        """The cotangents of the operands for cotangents of the results."""
        consts, carry = len(self.values.consts), len(self.values.carry)
        moving = self._moving(gs)
        if not any(moving):
            return [None] * (len(self.values.count) + len(self.values.of_body))
        backward, arriving = self._restricted(moving)
        reached = [i for i, flag in zip(self.seeded, moving, strict=True) if flag]
        given = [zeros(self.results[i]) if gs[i] is None else gs[i] for i in reached]
        flowing = [consts + i for i in reached if i < carry]
        # Sums of products of small factors: the factors are kept, and multiplied once after the loop.
        of_consts = {i: k for k, i in enumerate(arriving) if i < consts}
        products = {} if self.steps else _products(backward, of_consts, self.outside)
        summed = [i for i in of_consts if i not in products]
        stacked = [i for i in arriving if i >= consts + carry]
        stacks = {**self.rows, **self.saved}
        factors = list(dict.fromkeys(a for e in products.values() for a in e.inputs if a not in stacks))
        residuals = backward.inputs[: len(backward.inputs) - len(reached)]
        invariant = [v for v in residuals if v in self.outside]
        varying = [v for v in residuals if v not in self.outside]
        with_factors = flat_program(backward.inputs, backward.equations, [*backward.outputs, *factors], backward.name)

        def step(consts: Any, carry: Any, row: Any) -> tuple:
            (cotangents, sums), (stacked_values, g_ys) = carry, row
            env = dict(zip((*invariant, *varying), (*consts, *stacked_values), strict=True))
            outs = with_factors.evaluate([*(env[v] for v in residuals), *cotangents, *g_ys])
            of_input = dict(zip(arriving, outs, strict=False))
            moved = [of_input[i] if i in of_input else zeros(c) for i, c in zip(flowing, cotangents, strict=True)]
            sums = [pw.add(s, of_input[i]) for i, s in zip(summed, sums, strict=True)]
            return (moved, sums), ([of_input[i] for i in stacked], outs[len(arriving) :])

        operands = LoopOperands(
            self.steps or self.values.count,
            [self.outside[v] for v in invariant],
            (given[: len(flowing)], [zeros(self.values.consts[i]) for i in summed]),
            ([stacks[v] for v in varying], given[len(flowing) :]),
        )
        name = f"{self.body.name}_backward"
        (g_carry, sums), (g_xs, kept), _ = run_loop(step, operands, name, length=self.length, reverse=self.reverse)
        cotangents = dict(zip([*flowing, *summed, *stacked], [*g_carry, *sums, *g_xs], strict=True))
        stacks.update(zip(factors, kept, strict=True))
        cotangents.update((i, _product_over_steps(equation, stacks)) for i, equation in products.items())
        return [*(None for _ in self.values.count), *map(cotangents.get, range(len(self.body.inputs)))]

    def _moving(self, gs: Sequence[Any]) -> list[bool]:
        """Flags of the seeded outputs that have a cotangent: a given one, or for a carry one from a later step."""
        consts, carry = len(self.values.consts), len(self.values.carry)

        def grow(flags: list[bool]) -> list[bool]:
            reached = self._reached(flags)
            return [i < carry and consts + i in reached for i in self.seeded]

        return fixpoint([gs[i] is not None for i in self.seeded], grow)

    def _reached(self, moving: Sequence[bool]) -> list[int]:
        """The indices of the inputs that get a cotangent if these seeds are not zero."""
        sources = [v for v, flag in zip(self.parts.seeds, moving, strict=True) if flag]
        depending = _depending(self.parts.backward, sources)
        return [i for i, flag in zip(self.parts.arriving, depending, strict=True) if flag]

    def _restricted(self, moving: Sequence[bool]) -> tuple[Program, list[int]]:
        """The backward Program without the seeds that are zero, and the inputs whose cotangents it returns.

        If a result is not used, the derivatives towards it do not matter, and may be infinite.
        """
        if all(moving):
            return self.parts.backward, self.parts.arriving
        return _without_zeros(self.parts.backward, moving), self._reached(moving)


def _depending(program: Program, sources: Collection[Variable]) -> list[bool]:
    """Flags of the outputs that depend on some inputs."""
    reached = set(sources)
    for equation in program.equations:
        if not reached.isdisjoint(equation.inputs):
            reached.update(equation.outputs)
    return [atom in reached for atom in program.outputs]


def _without_zeros(linear: Program, live: Sequence[bool]) -> Program:
    """Removes zero inputs of a Program that is linear in its last ones; also returns the outputs that are then zero.

    Its other inputs are the inputs of ``linear`` that it still needs.
    """
    count = len(linear.inputs) - len(live)

    def run(*values: Any) -> list:
        seeds = iter(values[count:])
        outs = evaluate_linear(linear, values[:count], [next(seeds) if flag else None for flag in live])
        return [g for g in outs if g is not None]

    inputs = [*linear.inputs[:count], *(v for v, flag in zip(linear.inputs[count:], live, strict=True) if flag)]
    traced = trace_leaves(run, [v.aval for v in inputs], linear.name)
    original = dict(zip(traced.inputs, inputs, strict=True))
    read = lambda atom: original.get(atom, atom)
    equations = [e._replace(inputs=tuple(map(read, e.inputs))) for e in traced.equations]
    used = {atom for e in equations for atom in e.inputs} | set(map(read, traced.outputs))
    kept = [v for i, v in enumerate(inputs) if i >= count or v in used]
    return flat_program(kept, equations, list(map(read, traced.outputs)), linear.name)


def _products(backward: Program, outputs: dict[int, int], fixed: Collection[Variable]) -> dict[int, Equation]:
    """The matrix products that compute some outputs of a Program, if their factors are no larger than the product.

    Args:
        backward: a Program that a loop runs at every step.
        outputs: the positions of outputs, by any name.
        fixed: the inputs that are the same at every step.
    """
    makers = {out: equation for equation in backward.equations for out in equation.outputs}
    products = {}
    for name, position in outputs.items():
        equation = makers.get(backward.outputs[position])
        if equation is None or equation.op is not dot_general or any(atom in fixed for atom in equation.inputs):
            continue
        kept = sum(typical(atom.aval.nbytes) for atom in equation.inputs if atom in makers)
        if kept <= typical(equation.outputs[0].aval.nbytes):
            products[name] = equation
    return products


def _product_over_steps(equation: Equation, stacks: dict) -> Any:
    """The sum over all steps of a matrix product, from its factors stacked along a first axis."""
    contract, batch = (
        tuple(tuple(a + 1 for a in axes) for axes in equation.params[name]) for name in ("contract", "batch")
    )
    left, right = (stacks[atom] for atom in equation.inputs)
    others = {name: value for name, value in equation.params.items() if name not in ("contract", "batch")}
    return dot_general(left, right, contract=((0, *contract[0]), (0, *contract[1])), batch=batch, **others)
