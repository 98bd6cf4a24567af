"""Muon: orthogonalized momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.optim import tree as optim_tree
from tvmfun.optim.adam import adamw
from tvmfun.optim.adding import add_decayed_weights
from tvmfun.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    stateless,
)
from tvmfun.optim.combine import chain, partition
from tvmfun.optim.contrib.matrices import as_matrices, fans, for_each_leaf
from tvmfun.optim.numerics import corrected_mean, optional_dtype, safe_increment, zero_count
from tvmfun.optim.scaling import scale_by_learning_rate
from tvmfun.typing import DTypeLike, PyTree, Scalar

__all__ = ["MuonDimensionNumbers", "MuonState", "muon", "scale_by_muon"]

STANDARD = (3.4445, -4.7750, 2.0315)
# Five steps, each with its own polynomial.
DION = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
PRESETS = {"standard": STANDARD, "dion": DION}
PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")


class MuonDimensionNumbers(NamedTuple):
    """The view of an array as matrices: axes of the rows and of the columns; the others are batch axes.

    Attributes:
        reduction_axis: the axis, or axes, of the rows: those that a layer sums over.
        output_axis: the axis, or axes, of the columns.
    """

    reduction_axis: int | Sequence[int] = 0
    output_axis: int | Sequence[int] = 1


class MuonState(NamedTuple):
    """The state of ``scale_by_muon``.

    Attributes:
        count: the number of updates so far, a 0-d int32 array.
        mu: the running mean of the updates.
        ns_coeffs: the coefficients of the iteration.
    """

    count: Array
    mu: Updates
    ns_coeffs: Array


def scale_by_muon(
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
    beta: Scalar = 0.95,
    eps: Scalar = 1e-8,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    weight_dimension_numbers: PyTree | Callable[[Params], PyTree] = None,
) -> GradientTransformation:
    """Makes the singular values of the mean of the updates about 1, by Newton-Schulz iteration.

    ``m' = beta * m + (1 - beta) * u``. From ``X = m^ / norm(m^)`` with the unbiased ``m^``, each step takes
    ``X' = a * X + b * (X X^T) X + c * (X X^T)^2 X``, which leaves the singular vectors as they are.

    Args:
        ns_coeffs: ``(a, b, c)``, or such a triple for each step.
        ns_steps: the number of steps, if there is one triple for all.
        beta: the decay rate of the mean.
        eps: keeps the norm away from zero.
        mu_dtype: the dtype of the mean; ``None`` for the dtype of the parameters.
        nesterov: whether to use Nesterov momentum.
        adaptive: whether to multiply the result by its inner product with ``m^``.
        preconditioning: how the singular values are brought below 1 at first: the ``"frobenius"`` or the ``"spectral"``
            norm, ``"aol"`` (each row by the sum of ``|X X^T|``) or ``"schatten"`` (the norm of order 4).
        weight_dimension_numbers: a ``MuonDimensionNumbers`` for each parameter, in a tree that begins like the
            parameters, or a function from the parameters to such a tree; ``None`` if all have two axes.

    Returns:
        A transformation whose state is a ``MuonState``.

    Raises:
        ArgumentError: if ``preconditioning`` is unknown, or ``ns_coeffs`` has more rows than there are steps.
        ShapeError: if ``ns_coeffs`` does not have three columns, or a parameter has fewer than two axes.
        DtypeError: if ``mu_dtype`` is unknown.

    References: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); Bernstein and
    Newhouse, "Old Optimizer, New Norm: An Anthology" (2024).

    >>> transform = scale_by_muon()
    >>> updates, state = transform.update(tnp.eye(2), transform.init(tnp.zeros((2, 2))))
    >>> [round(float(x), 4) for x in updates[0]]
    [1.1081, 0.0]
    """
    if preconditioning not in PRECONDITIONINGS:
        names = ", ".join(map(repr, PRECONDITIONINGS))
        raise ArgumentError("scale_by_muon", f"preconditioning must be one of {names}", got=repr(preconditioning))
    coefficients = np.asarray(ns_coeffs)
    if coefficients.ndim > 2 or coefficients.shape[-1:] != (3,):
        raise ShapeError("scale_by_muon", "ns_coeffs must have shape (3,) or (n, 3)", got=str(coefficients.shape))
    if coefficients.ndim == 2 and len(coefficients) > ns_steps:
        raise ArgumentError("scale_by_muon", f"ns_coeffs must be for {ns_steps} steps", got=str(len(coefficients)))
    dtype = optional_dtype(mu_dtype)

    def init(params: Params) -> MuonState:
        coeffs = tnp.asarray(coefficients, dtype=optim_tree.dtype(params, "highest"))
        return MuonState(zero_count(), optim_tree.zeros_like(params, dtype), coeffs)

    def update(updates: Updates, state: MuonState, params: Params | None = None) -> tuple:
        count = safe_increment(state.count)
        mu = optim_tree.update_moment(updates, state.mu, beta)
        mu_hat = corrected_mean(updates, mu, beta, count, nesterov)

        def scaled(m: Array, numbers: MuonDimensionNumbers) -> Array:
            matrices, back = as_matrices("scale_by_muon", m, numbers)
            result = back(orthogonalize(matrices, state.ns_coeffs, ns_steps, preconditioning, eps))
            return tnp.sum(m * result) * result if adaptive else result

        leaves, structure = tree.flatten(mu_hat)
        numbers = _numbers(weight_dimension_numbers, mu_hat)
        new = tree.unflatten(structure, [scaled(m, n) for m, n in zip(leaves, numbers, strict=True)])
        return new, MuonState(count, optim_tree.cast(mu, dtype), state.ns_coeffs)

    return GradientTransformation(init, update)


def orthogonalize(x: Array, ns_coeffs: Array, ns_steps: int, preconditioning: str, eps: Scalar) -> Array:
    """Matrices ``[batch, rows, columns]`` with singular values of about 1."""
    # The shorter side first: it sets the size of the products.
    transposed = x.shape[1] > x.shape[2]
    if transposed:
        x = tnp.matrix_transpose(x)
    if preconditioning == "frobenius":
        x = x / (tnp.linalg.matrix_norm(x, keepdims=True) + eps)
    elif preconditioning == "spectral":
        x = x / (tnp.linalg.matrix_norm(x, keepdims=True, ord=2) + eps)
    coeffs = ns_coeffs.astype(x.dtype)
    rows = [coeffs] * ns_steps if coeffs.ndim == 1 else [coeffs[i] for i in range(coeffs.shape[0])]
    for step, row in enumerate(rows):
        a = x @ tnp.matrix_transpose(x)
        if step == 0 and preconditioning == "aol":
            s = 1 / tnp.sqrt(tnp.maximum(tnp.sum(tnp.abs(a), axis=-1, keepdims=True), eps))
            x, a = x * s, a * s * tnp.matrix_transpose(s)
        elif step == 0 and preconditioning == "schatten":
            s = 1 / tnp.sqrt(tnp.maximum(tnp.linalg.matrix_norm(a, keepdims=True), eps))
            x, a = x * s, a * s**2
        x = row[0] * x + (row[1] * a + (row[2] * a) @ a) @ x
    return tnp.matrix_transpose(x) if transposed else x


def scale_by_shape(
    weight_dimension_numbers: PyTree | Callable[[Params], PyTree], consistent_rms: Scalar | None
) -> GradientTransformation:
    """Factors that make learning rates fit matrices of any shape."""

    def apply(updates: Updates, params: Params | None) -> Updates:
        def factor(u: Array, numbers: MuonDimensionNumbers) -> Array:
            fan_in, fan_out = fans("muon", u.shape, numbers)
            if consistent_rms is None:
                return math.sqrt(max(1.0, fan_out / fan_in)) * u
            return math.sqrt(max(fan_in, fan_out)) * consistent_rms * u

        leaves, structure = tree.flatten(updates)
        numbers = _numbers(weight_dimension_numbers, updates)
        return tree.unflatten(structure, [factor(u, n) for u, n in zip(leaves, numbers, strict=True)])

    return stateless(apply)


def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
    beta: Scalar = 0.95,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = None,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    adam_b1: Scalar = 0.9,
    adam_b2: Scalar = 0.999,
    adam_eps_root: Scalar = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: PyTree | Callable[[Params], PyTree] = None,
    consistent_rms: Scalar | None = None,
) -> GradientTransformationExtraArgs:
    """Muon for matrices, AdamW for all other parameters.

    For a matrix ``u = -learning_rate * (f * X + weight_decay * p)`` with the ``X`` of :func:`scale_by_muon` and
    ``f = sqrt(max(1, columns / rows))``.

    Args:
        ns_coeffs: the coefficients, as for :func:`scale_by_muon`, or ``"standard"`` or ``"dion"``.
        eps: keeps denominators away from zero, also in Adam.
        weight_decay_mask: which matrices to decay, as for :func:`masked`; ``None`` for all.
        adam_b1: the decay rate of Adam's mean of the gradients.
        adam_b2: the decay rate of its mean of their squares.
        adam_eps_root: keeps its square root away from zero.
        adam_weight_decay: its weight decay.
        adam_learning_rate: its learning rate; ``None`` for ``learning_rate``.
        muon_weight_dimension_numbers: a ``MuonDimensionNumbers`` for each matrix, ``None`` for other parameters, in a
            tree that begins like the parameters, or a function from the parameters to such a tree; ``None`` to take all
            with two axes for matrices.
        consistent_rms: makes ``f = consistent_rms * sqrt(max(rows, columns))``; 0.2 gives steps like AdamW's.

    Other arguments: as :func:`scale_by_muon` and :func:`tvmfun.optim.adamw`.

    Returns:
        The optimizer; its ``update`` needs ``params``.

    Raises:
        ArgumentError: if ``ns_coeffs`` or ``preconditioning`` is an unknown name; on ``update``, if it gets no
            ``params``.
        ShapeError: if ``ns_coeffs`` does not have three columns, or a matrix has fewer than two axes.
        DtypeError: if ``mu_dtype`` is unknown.

    References: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); Liu et al., "Muon is
    Scalable for LLM Training" (2025); Ahn et al., "Dion: Distributed Orthonormalized Updates" (2025).

    >>> optimizer = muon(0.1)
    >>> params = {"kernel": tnp.zeros((2, 2)), "bias": tnp.zeros(2)}
    >>> gradients = {"kernel": 5 * tnp.eye(2), "bias": tnp.ones(2)}
    >>> updates, state = optimizer.update(gradients, optimizer.init(params), params)
    >>> round(float(updates["kernel"][0, 0]), 4), round(float(updates["bias"][0]), 4)
    (-0.1108, -0.1474)
    """
    if isinstance(ns_coeffs, str):
        if ns_coeffs not in PRESETS:
            raise ArgumentError("muon", f"ns_coeffs must be one of {sorted(PRESETS)}", got=repr(ns_coeffs))
        ns_coeffs = PRESETS[ns_coeffs]
    numbers = muon_weight_dimension_numbers

    def labels(params: Params) -> PyTree:
        kinds = for_each_leaf(numbers, MuonDimensionNumbers, lambda x: True if tnp.ndim(x) == 2 else None, params)
        structure = tree.structure(params)
        return tree.unflatten(structure, ["adam" if kind is None else "muon" for kind in kinds])

    matrices = chain(
        scale_by_muon(
            ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov=nesterov,
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=numbers,
        ),
        scale_by_shape(numbers, consistent_rms),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        nesterov=nesterov,
    )
    return partition({"muon": matrices, "adam": others}, labels)


def _numbers(numbers: PyTree, params: Params) -> list:
    return for_each_leaf(numbers, MuonDimensionNumbers, lambda x: MuonDimensionNumbers(), params)
