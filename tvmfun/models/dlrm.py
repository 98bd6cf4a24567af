"""DLRM: a recommender of tables of embeddings, their products, and two multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import nn, random, tree
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.interop.state_dict import Row, linear
from tvmfun.models.config_checks import check_sizes
from tvmfun.nn import functional as F
from tvmfun.nn.init import normal
from tvmfun.typing import ArrayLike, DTypeLike, Key

__all__ = ["DLRM", "DLRMConfig", "dlrm_state_dict"]


@dataclass(frozen=True)
class DLRMConfig:
    """The sizes of a DLRM.

    Args:
        table_sizes: the number of rows of each table, one table per categorical feature.
        dense_features: the number of numerical features.
        embedding_dim: the size of a row.
        bottom: the widths of the hidden layers for the numerical features.
        top: the widths of the hidden layers after the interaction.
        sparse: whether gradients have only the rows that were looked up, for :func:`tvmfun.optim.lazy`.
    """

    table_sizes: tuple[int, ...]
    dense_features: int = 13
    embedding_dim: int = 16
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)
    sparse: bool = True

    def __post_init__(self) -> None:
        check_sizes(self)
        if not self.table_sizes:
            raise ArgumentError("DLRMConfig", "there must be a table", got="none")


@tree.register_dataclass
@dataclass(frozen=True)
class DLRM:
    """The logit of a click from numerical features and ids of embeddings.

    Call it with numerical features, floats of shape (batch, dense_features), and ids, integers of shape (batch,
    tables); it returns logits of shape (batch,).

    Reference: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
    (2019).

    >>> model = DLRM.create(DLRMConfig((100, 50), dense_features=3), random.key(0))
    >>> model(tnp.zeros((4, 3)), tnp.zeros((4, 2), "int32")).shape
    (4,)
    """

    tables: tuple[nn.Embedding, ...]
    bottom: tuple[nn.Linear, ...]
    top: tuple[nn.Linear, ...]
    config: DLRMConfig = field(metadata={"static": True})

    @classmethod
    def create(cls, config: DLRMConfig, key: Key, dtype: DTypeLike = "float32") -> DLRM:
        """Returns a model with new parameters, as in the paper's code: tables within 1/sqrt(rows), layers normal."""
        table_key, bottom_key, top_key = random.split(key, 3)
        tables = []
        for k, size in zip(random.split(table_key, len(config.table_sizes)), config.table_sizes, strict=True):
            bound = size**-0.5
            init = lambda key, shape, dtype, bound=bound: random.uniform(key, shape, dtype, -bound, bound)
            settings: dict[str, Any] = {"sparse": config.sparse, "dtype": dtype, "weight_init": init}
            tables.append(nn.Embedding(size, config.embedding_dim, key=k, **settings))
        count = len(config.table_sizes) + 1
        interactions = count * (count - 1) // 2
        bottom = (config.dense_features, *config.bottom, config.embedding_dim)
        top = (config.embedding_dim + interactions, *config.top, 1)
        return cls(tuple(tables), _layers(bottom, bottom_key, dtype), _layers(top, top_key, dtype), config)

    def __call__(self, dense: ArrayLike, ids: ArrayLike) -> Array:
        """Returns the logits of examples.

        Raises:
            ShapeError: if there are other features than the model was made for.
        """
        ids = tnp.asarray(ids)
        if ids.ndim != 2 or ids.shape[1] != len(self.tables):
            raise ShapeError("DLRM", f"ids must have the shape (batch, {len(self.tables)})", got=str(ids.shape))
        x = tnp.asarray(dense)
        for layer in self.bottom:
            x = F.relu(layer(x))
        vectors = tnp.stack([x, *(table(ids[:, i]) for i, table in enumerate(self.tables))], axis=1)
        products = tnp.matmul(vectors, tnp.permute_dims(vectors, (0, 2, 1)))
        rows, columns = tnp.tril_indices(vectors.shape[1], -1)
        x = tnp.concatenate([x, products[:, rows, columns]], axis=1)
        for layer in self.top[:-1]:
            x = F.relu(layer(x))
        return self.top[-1](x)[:, 0]


def _layers(sizes: Sequence[int], key: Key, dtype: DTypeLike) -> tuple[nn.Linear, ...]:
    keys = random.split(key, len(sizes) - 1)
    return tuple(
        nn.Linear(m, n, key=k, dtype=dtype, weight_init=normal((2 / (m + n)) ** 0.5), bias_init=normal(n**-0.5))
        for k, (m, n) in zip(keys, pairwise(sizes), strict=True)
    )


def dlrm_state_dict(config: DLRMConfig) -> list[Row]:
    """Returns the table of the arrays of ``DLRM_Net`` in the paper's code, whose layers alternate with activations."""
    weight = ".weight.array" if config.sparse else ".weight"
    rows = [Row(f".tables[{i}]{weight}", f"emb_l.{i}.weight") for i in range(len(config.table_sizes))]
    for i in range(len(config.bottom) + 1):
        rows += linear(f".bottom[{i}]", f"bot_l.{2 * i}")
    for i in range(len(config.top) + 1):
        rows += linear(f".top[{i}]", f"top_l.{2 * i}")
    return rows
