"""Affine and bilinear maps, embeddings, and the identity."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any

import tvmfun.numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.jit import jit
from tvmfun.nn import functional
from tvmfun.nn.functional.linear import row_index
from tvmfun.nn.init import Initializer, normal
from tvmfun.nn.layers.parameters import check_positive, float_dtype, initial_parameters, layer
from tvmfun.sparse import RowTable, is_table
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["Bilinear", "Embedding", "Identity", "Linear"]


@layer
class Linear:
    """An affine map of the last axis: ``x @ weight + bias``.

    The weight has the shape (in_features, out_features). Weight and bias are initialized uniform between
    ``-1 / sqrt(in_features)`` and ``1 / sqrt(in_features)``, as in PyTorch.

    Args:
        in_features: the size of the last axis of the argument.
        out_features: the size of the last axis of the result.
        key: a key of :mod:`tvmfun.random`.
        bias: whether to add a bias.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weight, instead of PyTorch's.
        bias_init: an initializer for the bias, instead of PyTorch's.

    Raises:
        ArgumentError: if a number of features is not positive.
        DtypeError: if ``dtype`` is not a float.

    >>> from tvmfun import random
    >>> Linear(784, 512, key=random.key(0))
    Linear(weight=float32[784,512], bias=float32[512])
    """

    weight: Array
    bias: Array | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        key: Key,
        bias: bool = True,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        check_positive("Linear", in_features=in_features, out_features=out_features)
        self.weight, self.bias = initial_parameters(
            "Linear",
            key,
            (in_features, out_features),
            fan_in=in_features,
            bias=bias,
            dtype=dtype,
            weight_init=weight_init,
            bias_init=bias_init,
        )

    def __call__(self, x: ArrayLike) -> Array:
        """Maps an array of shape (..., in_features) to one of shape (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)


@layer
class Bilinear:
    """A bilinear map of the last axes of two arrays: ``y[k] = sum_ij x1[i] * weight[i, j, k] * x2[j] + bias[k]``.

    The weight has the shape (in1_features, in2_features, out_features). Weight and bias are initialized uniform
    between ``-1 / sqrt(in1_features)`` and ``1 / sqrt(in1_features)``, as in PyTorch.

    Args:
        in1_features: the size of the last axis of the first argument.
        in2_features: the size of the last axis of the second argument.
        out_features: the size of the last axis of the result.
        key: a key of :mod:`tvmfun.random`.
        bias: whether to add a bias.
        dtype: the dtype of the parameters.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the weight, instead of PyTorch's.
        bias_init: an initializer for the bias, instead of PyTorch's.

    Raises:
        ArgumentError: if a number of features is not positive.
        DtypeError: if ``dtype`` is not a float.

    >>> from tvmfun import random
    >>> Bilinear(3, 4, 5, key=random.key(0))
    Bilinear(weight=float32[3,4,5], bias=float32[5])
    """

    weight: Array
    bias: Array | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        *,
        key: Key,
        bias: bool = True,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        check_positive("Bilinear", in1_features=in1_features, in2_features=in2_features, out_features=out_features)
        self.weight, self.bias = initial_parameters(
            "Bilinear",
            key,
            (in1_features, in2_features, out_features),
            fan_in=in1_features,
            bias=bias,
            dtype=dtype,
            weight_init=weight_init,
            bias_init=bias_init,
        )

    def __call__(self, x1: ArrayLike, x2: ArrayLike) -> Array:
        """Maps arrays of shapes (..., in1_features) and (..., in2_features) to one of shape (..., out_features)."""
        return functional.bilinear(x1, x2, self.weight, self.bias)


@layer
class Embedding:
    """A table of vectors, looked up by integers.

    The weight has the shape (num_embeddings, embedding_dim) and is initialized normal, with zeros in the row
    ``padding_idx``, as in PyTorch. An index out of range gives a row of NaN, as in Flax; negative ones count from the
    end.

    Args:
        num_embeddings: the number of rows.
        embedding_dim: the size of a row.
        padding_idx: a row that is initialized to zeros and gets no gradient.
        sparse: whether the gradient holds only the rows that were looked up. The weight is then a
            :class:`tvmfun.sparse.RowTable`, which :func:`tvmfun.optim.lazy` makes an optimizer update.
        key: a key of :mod:`tvmfun.random`.
        dtype: the dtype of the table.
        weight_init: an initializer of :mod:`tvmfun.nn.init` for the table, instead of PyTorch's.

    Raises:
        ArgumentError: if a size is not positive, or ``padding_idx`` is out of range.
        DtypeError: if ``dtype`` is not a float.

    >>> from tvmfun import random
    >>> tokens = Embedding(100, 8, key=random.key(0))
    >>> x = tokens(tnp.asarray([[1, 2, 3]]))
    >>> x.shape, tokens.attend(x).shape
    ((1, 3, 8), (1, 3, 100))
    """

    weight: Array | RowTable
    padding_idx: int | None = field(metadata={"static": True})

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        padding_idx: int | None = None,
        sparse: bool = False,
        key: Key,
        dtype: DTypeLike = "float32",
        weight_init: Initializer | None = None,
    ) -> None:
        check_positive("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        dtype, shape = float_dtype("Embedding", dtype), (num_embeddings, embedding_dim)
        if padding_idx is not None:
            padding_idx = row_index("Embedding", padding_idx, num_embeddings)
        weight = (normal(1.0) if weight_init is None else weight_init)(key, shape, dtype)
        if weight.shape != shape:
            what = f"the initializer must make a weight of shape {shape}"
            raise ShapeError("Embedding", what, got=str(weight.shape))
        if padding_idx is not None and weight_init is None:
            weight = _without_row(weight, padding_idx)
        self.weight = RowTable(weight) if sparse else weight
        self.padding_idx = padding_idx

    def __call__(self, indices: ArrayLike) -> Array:
        """Looks up integers of any shape (...), and returns an array of shape (..., embedding_dim)."""
        return functional.embedding(indices, self.weight, padding_idx=self.padding_idx)

    def attend(self, x: ArrayLike) -> Array:
        """The products of vectors (..., embedding_dim) with all rows: scores of shape (..., num_embeddings).

        With it the first and the last layer of a model can share a table: tied weights are one leaf.

        Raises:
            ArgumentError: if the table is sparse, because the gradient of a product has all rows.
        """
        if is_table(self.weight):
            raise ArgumentError("Embedding.attend", "a product needs all rows", got="sparse=True", hint="sparse=False")
        return functional.linear(x, tnp.permute_dims(self.weight, (1, 0)))


@layer
class Identity:
    """Returns its argument.

    >>> Identity()(3)
    3
    """

    def __init__(self) -> None:
        pass

    def __call__(self, x: Any) -> Any:
        """Returns ``x``."""
        return x


@partial(jit, static_argnames="row")
def _without_row(weight: Any, row: int) -> Array:
    return weight.at[row].set(0)
