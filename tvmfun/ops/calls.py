"""Calls: Programs with rules of their own for transforms. Lowering inlines the Program.

``custom_vjp`` and ``custom_jvp`` carry the user's derivative, ``checkpoint`` recomputes residuals in the backward pass
instead of keeping them, and ``barrier`` keeps common subexpression elimination from undoing that. ``platform_call`` has
a Program for each platform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from tvm import te

from tvmfun import tree
from tvmfun.core.array import ShapeDtype
from tvmfun.core.batching import Axis, Batched, batch, current_axis, repeat
from tvmfun.core.derivative import (
    Tape,
    evaluate_linear,
    indices_of,
    is_float,
    needed_inputs,
    pushforward,
    restricted,
    trace_leaves,
    transposed,
    zeros,
)
from tvmfun.core.inline import subprograms
from tvmfun.core.leaf import abstract
from tvmfun.core.op import Op, Platform, no_flops, register
from tvmfun.core.program import Equation, Program
from tvmfun.core.trace import named_axis
from tvmfun.errors import GradientError, ProgramError
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as reductions
from tvmfun.ops.control import closed
from tvmfun.ops.control.branches import closed_branches, pruned_branches, pull_back, push_forward

# Whether a rule of ``custom_jvp`` is being transposed.
_TRANSPOSES: ContextVar[bool] = ContextVar("transposes rules", default=False)


@dataclass(frozen=True)
class Rule:
    """A Python function as a parameter of an op; flat: it takes and returns lists of arrays.

    It is not callable itself: TVM would convert a callable parameter to a packed function, which cannot be traced.
    """

    call: Callable[..., Any]

    def apply(self, *arrays: Any) -> list[Any]:
        """The results for some arrays. What the function differentiates itself is not being transposed."""
        token = _TRANSPOSES.set(False)
        try:
            return list(self.call(*arrays))
        finally:
            _TRANSPOSES.reset(token)

    def __repr__(self) -> str:
        return getattr(self.call, "__name__", "rule")

    def __reduce__(self) -> Any:
        what = "a Program with a custom derivative cannot be pickled, because that is a Python function"
        raise ProgramError("pickle", what, got=repr(self), hint="the Program of the gradient")


def _program(platform: Platform, *, program: Program, **params: Any) -> Program:
    return program


def _runs(*, program: Program, **params: Any) -> list:
    return [[(program, 1)]]


def _batched_function(program: Program, flags: Sequence[bool], axis: Axis) -> Callable:
    """A function of batched values whose results are all batched."""

    def run(*values: Any) -> list:
        every = [False] * len(program.captured) + list(flags)
        outputs, is_batched = batch(program, [*program.captured, *values], every, axis)
        return [out if flag else repeat(out, axis.size) for out, flag in zip(outputs, is_batched, strict=True)]

    return run


def _example(value: Any, flag: bool) -> ShapeDtype:
    aval = abstract(value)
    return ShapeDtype(aval.shape[1:], aval.dtype) if flag else ShapeDtype(aval.shape, aval.dtype)


def _batched_rule(rule: Rule, flags: Sequence[bool], axis: Axis) -> Callable:
    """A flat rule for batched values: traced for one example, then batched."""

    def run(*values: Any) -> list:
        every = [*flags, *(True for _ in values[len(flags) :])]
        examples = [_example(x, flag) for x, flag in zip(values, every, strict=True)]
        with named_axis(axis.name, axis.size):
            program = trace_leaves(rule.call, examples, repr(rule))
        return _batched_function(program, every, axis)(*values)

    return run


# -- custom_vjp --------------------------------------------------------------------------------------------------------


def _refuse_captured(name: str, program: Program, active: Sequence[bool], captured: int) -> None:
    """Refuses derivatives for what the Program closes over; what its rules alone close over needs none."""
    moving = {v for flag, v in zip(active, program.inputs[:captured], strict=False) if flag}
    if not moving.isdisjoint(program.outputs) or any(not moving.isdisjoint(e.inputs) for e in program.equations):
        raise GradientError(
            name,
            "the function uses a value from outside that is being differentiated",
            got="a closure",
            hint="passing the value as an argument",
        )


def _vjp_shape(*avals: ShapeDtype, program: Program, forward: Rule, backward: Rule, captured: int) -> tuple:
    return program.out_avals


def _vjp_pullback(active, *args, program, forward, backward, captured):
    _refuse_captured("custom_vjp", program, active, captured)
    values = forward.apply(*args)
    count = len(program.outputs)
    results, residuals = values[:count], values[count:]

    def pull(gs: Sequence[Any]) -> list:
        filled = [zeros(out) if g is None else g for g, out in zip(gs, results, strict=True)]
        return [None] * captured + backward.apply(*args[:captured], *residuals, *filled)

    return tuple(results), pull


def _vjp_pushforward(args, tangents, *, program, forward, backward, captured):
    """Forward mode: the rule is linear in the cotangent, so its transpose maps tangents to tangents."""
    _refuse_captured("custom_vjp", program, [t is not None for t in tangents], captured)
    results, pull = _vjp_pullback((False,) * len(args), *args, program=program, forward=forward, backward=backward,
                                  captured=captured)  # fmt: skip
    floats = [i for i, out in enumerate(program.outputs) if is_float(out)]
    moving = [i for i, t in enumerate(tangents) if t is not None]

    def linear(*gs: Any) -> list:
        full = dict(zip(floats, gs, strict=True))
        cotangents = pull([full.get(i) for i in range(len(results))])
        return [zeros(args[i]) if cotangents[i] is None else cotangents[i] for i in moving]

    transposed = trace_leaves(linear, [program.out_avals[i] for i in floats], program.name)
    seeds = [zeros(results[i]) for i in floats]
    moved = dict(zip(floats, Tape(transposed, seeds).backward([tangents[i] for i in moving]), strict=True))
    return results, [moved.get(i) for i in range(len(results))]


def _vjp_batch(batched, *args, program, forward, backward, captured):
    axis = current_axis()
    inner, more = closed(_batched_function(program, batched, axis), [abstract(x) for x in args], program.name)
    flags = batched[captured:]
    run_forward = _batched_rule(forward, batched, axis)
    run_backward = _batched_rule(backward, batched[:captured], axis)

    def of_examples(*values: Any) -> list:
        return run_forward(*values[len(more) :])

    def unbatched_sums(*values: Any) -> list:
        """The cotangents, summed over the examples for arguments without a batch axis."""
        cotangents = run_backward(*values[len(more) :])
        return [g if flag else reductions.sum(g, axis=(0,)) for g, flag in zip(cotangents, flags, strict=True)]

    return custom_vjp_call(
        *more,
        *args,
        program=inner,
        forward=Rule(of_examples),
        backward=Rule(unbatched_sums),
        captured=len(more) + captured,
    )


#: ``custom_vjp_call(*captured, *args, program=, forward=, backward=, captured=)``: the flat function ``program`` with
#: the derivative ``forward(*captured, *args) -> (*results, *residuals)``,
#: ``backward(*captured, *residuals, *cotangents) -> cotangents`` of the ``args``.
custom_vjp_call = register(
    Op(
        "custom_vjp_call",
        "call",
        _vjp_shape,
        _program,
        batch=_vjp_batch,
        pullback=_vjp_pullback,
        pushforward=_vjp_pushforward,
        runs=_runs,
    )
)

# -- custom_jvp --------------------------------------------------------------------------------------------------------


def _jvp_shape(*avals: ShapeDtype, program: Program, rule: Rule, captured: int) -> tuple:
    return program.out_avals


def _jvp_pushforward(args, tangents, *, program, rule, captured):
    _refuse_captured("custom_jvp", program, [t is not None for t in tangents], captured)
    directions = [zeros(x) if t is None else t for x, t in zip(args[captured:], tangents[captured:], strict=True)]
    values = rule.apply(*args, *directions)
    count = len(program.outputs)
    return tuple(values[:count]), values[count:]


def _jvp_pullback(active, *args, program, rule, captured):
    """Reverse mode: the rule is linear in the tangents, so its transpose maps cotangents to cotangents.

    A rule may call the function itself on tangents, in which it is linear. There its Program is transposed, as in JAX.
    """
    _refuse_captured("custom_jvp", program, active, captured)
    if _TRANSPOSES.get():
        tape = Tape(program, args, active)
        return tuple(tape.outputs), tape.backward
    primals = args[captured:]
    moving = [i for i, flag in enumerate(active[captured:]) if flag]
    count = len(program.outputs)

    def linear(*tangents: Any) -> list:
        full = dict(zip(moving, tangents, strict=True))
        return rule.apply(*args, *(full[i] if i in full else zeros(x) for i, x in enumerate(primals)))

    avals = [_example(primals[i], False) for i in moving]
    traced = trace_leaves(linear, avals, program.name)
    seeds = traced.out_avals[count:]
    token = _TRANSPOSES.set(True)
    try:
        backward = transposed(traced, avals, seeds, "custom_jvp")
    finally:
        _TRANSPOSES.reset(token)
    nowhere = [zeros(aval) for aval in avals]

    def pull(gs: Sequence[Any]) -> list:
        cotangents = dict(zip(moving, evaluate_linear(backward, [*backward.captured, *nowhere], gs), strict=True))
        return [None] * captured + [cotangents.get(i) for i in range(len(primals))]

    return tuple(traced.evaluate([*traced.captured, *nowhere])[:count]), pull


def _jvp_batch(batched, *args, program, rule, captured):
    axis = current_axis()
    inner, more = closed(_batched_function(program, batched, axis), [abstract(x) for x in args], program.name)

    def run(*values: Any) -> list:
        # The tangent of an argument without a batch axis has no batch axis either.
        return _batched_rule(rule, (*batched, *batched[captured:]), axis)(*values[len(more) :])

    return custom_jvp_call(*more, *args, program=inner, rule=Rule(run), captured=len(more) + captured)


#: ``custom_jvp_call(*captured, *args, program=, rule=, captured=)``: the flat function ``program`` with the derivative
#: ``rule(*captured, *args, *tangents) -> (*results, *result_tangents)``.
custom_jvp_call = register(
    Op(
        "custom_jvp_call",
        "call",
        _jvp_shape,
        _program,
        batch=_jvp_batch,
        pullback=_jvp_pullback,
        pushforward=_jvp_pushforward,
        runs=_runs,
    )
)

# -- checkpoint --------------------------------------------------------------------------------------------------------

#: A policy: which results of a checkpointed function are kept for the backward pass.
Policy = Callable[[Equation], bool]


def _checkpoint_shape(*avals: ShapeDtype, program: Program, policy: Policy | None) -> tuple:
    return program.out_avals


def _checkpoint_pullback(active, *args, program, policy):
    kept = [e for e in program.equations if policy is not None and policy(e)]
    saved_variables = [out for e in kept for out in e.outputs]
    outputs = (*program.outputs, *saved_variables)
    kept_too = replace(program, outputs=outputs, out_tree=tree.structure([0] * len(outputs)))
    forward, more = kept_too, ()
    if any(map(_has_own_derivative, program.equations)):
        # The second derivative is that of the custom rules, not of the functions that have them.
        run = lambda *xs: Tape(kept_too, xs, active).outputs
        forward, more = closed(run, [abstract(x) for x in args], program.name)
    values = checkpoint(*more, *args, program=forward, policy=policy)
    count = len(program.outputs)
    results, saved = values[:count], dict(zip(saved_variables, values[count:], strict=True))

    def pull(gs: Sequence[Any]) -> list:
        known = {variable: barrier(x) for variable, x in saved.items()}
        # The argument of `name` is the same value as its result.
        known |= {e.inputs[0]: known[e.outputs[0]] for e in kept if e.op is name}
        tape = Tape(program, [barrier(x) for x in args], active, known)
        return tape.backward(gs)

    return tuple(results), pull


def _has_own_derivative(equation: Equation) -> bool:
    """Whether the equation, or one in its Programs, calls a function with a custom derivative."""
    inner = (e for program in subprograms(tuple(equation.params.values())) for e in program.equations)
    return equation.op in (custom_vjp_call, custom_jvp_call) or any(map(_has_own_derivative, inner))


def _checkpoint_pushforward(args, tangents, *, program, policy):
    moving = [i for i, t in enumerate(tangents) if t is not None]
    present: list[int] = []

    def both(*values: Any) -> list:
        full = dict(zip(moving, values[len(args) :], strict=True))
        outputs, moved = pushforward(program, values[: len(args)], [full.get(i) for i in range(len(args))])
        present[:] = [i for i, t in enumerate(moved) if t is not None]
        return [*outputs, *(moved[i] for i in present)]

    types = [_example(x, False) for x in (*args, *(tangents[i] for i in moving))]
    inner, more = closed(both, types, program.name)
    values = checkpoint(*more, *args, *(tangents[i] for i in moving), program=inner, policy=policy)
    count = len(program.outputs)
    moved = dict(zip(present, values[count:], strict=True))
    return tuple(values[:count]), [moved.get(i) for i in range(count)]


def _checkpoint_batch(batched, *args, program, policy):
    flags: list[bool] = []

    def run(*values: Any) -> list:
        outputs, flags[:] = batch(program, values, batched)
        return outputs

    inner, captured = closed(run, [abstract(x) for x in args], program.name)
    return Batched(checkpoint(*captured, *args, program=inner, policy=policy), tuple(flags))


def _checkpoint_prune(used, *, program, policy):
    inputs = needed_inputs(program, used)
    return indices_of(inputs), indices_of(used), {"program": restricted(program, inputs, used), "policy": policy}


#: ``checkpoint(*args, program=, policy=)``: the closed Program. The backward pass keeps only the arguments and the
#: results of the equations that the policy picks, and recomputes the rest.
checkpoint = register(
    Op(
        "checkpoint",
        "call",
        _checkpoint_shape,
        _program,
        batch=_checkpoint_batch,
        pullback=_checkpoint_pullback,
        pushforward=_checkpoint_pushforward,
        runs=_runs,
        prune=_checkpoint_prune,
    )
)

# -- platform_call -----------------------------------------------------------------------------------------------------


def _platform_shape(*avals: ShapeDtype, cpu: Program, cuda: Program) -> tuple:
    return cpu.out_avals


def _platform_batch(batched: tuple[bool, ...], *args: Any, cpu: Program, cuda: Program) -> tuple:
    axis = current_axis()
    functions = [_batched_function(program, batched, axis) for program in (cpu, cuda)]
    (cpu, cuda), captured = closed_branches(functions, [abstract(x) for x in args], cpu.name)
    return platform_call(*captured, *args, cpu=cpu, cuda=cuda)


def _call_on_platform(programs: Sequence[Program], *operands: Any) -> tuple:
    cpu, cuda = programs
    return platform_call(*operands, cpu=cpu, cuda=cuda)


def _platform_pullback(active, *args, cpu, cuda):
    return pull_back(_call_on_platform, active, args, (cpu, cuda))


def _platform_pushforward(args, tangents, *, cpu, cuda):
    return push_forward(_call_on_platform, args, tangents, (cpu, cuda))


def _platform_prune(used, *, cpu, cuda):
    inputs, (cpu, cuda) = pruned_branches((cpu, cuda), used)
    return indices_of(inputs), indices_of(used), {"cpu": cpu, "cuda": cuda}


#: ``platform_call(*args, cpu=, cuda=)``: two closed Programs with equal results; lowering inlines the one for its
#: target. Each is differentiated separately, and returns zeros for the residuals of the other.
platform_call = register(
    Op(
        "platform_call",
        "call",
        _platform_shape,
        lambda platform, *, cpu, cuda: cuda if platform == "cuda" else cpu,
        batch=_platform_batch,
        pullback=_platform_pullback,
        pushforward=_platform_pushforward,
        prune=_platform_prune,
        runs=lambda *, cpu, cuda: [[(cpu, 1)]],
    )
)


def on_platform(cpu: Callable, cuda: Callable, *args: Any) -> Any:
    """Applies one of two functions, depending on the target.

    Args:
        cpu: the function for CPUs.
        cuda: the function for GPUs; its results have the same types.
        args: trees of arrays.
    """
    leaves, structure = tree.flatten(args)
    out_trees: list = []

    def flat(function: Callable) -> Callable:
        def run(*leaves: Any) -> list:
            results, out_tree = tree.flatten(function(*tree.unflatten(structure, leaves)))
            out_trees.append(out_tree)
            return results

        return run

    programs, captured = closed_branches([flat(cpu), flat(cuda)], [abstract(x) for x in leaves], cpu.__name__)
    return tree.unflatten(out_trees[0], platform_call(*captured, *leaves, cpu=programs[0], cuda=programs[1]))


# -- barrier and name --------------------------------------------------------------------------------------------------

#: ``barrier(x)``: ``x``, which no simplification sees through: equations after it are not shared with those before.
barrier = register(
    Op(
        "barrier",
        "barrier",
        lambda x: x,
        lambda x: te.compute(x.shape, lambda *i: x(*i)),
        (lambda g, o, x: g,),
        batch=lambda batched, x: barrier(x),
        view=True,
    )
)


def _name_shape(x: ShapeDtype, *, name: str) -> ShapeDtype:
    return x


#: ``name(x, name=)``: ``x``, with a name that checkpoint policies refer to.
name = pw.pointwise("name", lambda x, *, name: x, (lambda g, o, x, *, name: g,), shape=_name_shape, flops=no_flops)
