"""Tokens that a model appends: compared with a full pass for each token, and draws with their probabilities."""

from functools import partial

import numpy as np
import pytest

import tvmfun
from tvmfun import random, tree
from tvmfun.counters import counted
from tvmfun.errors import ArgumentError, DtypeError, IndexingError, ShapeError
from tvmfun.models import GPT2, GPT2Config, TransformerConfig, TransformerLanguageModel, generate

WORDS, LENGTH = 17, 80


@pytest.fixture(scope="module")
def model():
    model = GPT2.create(GPT2Config(WORDS, LENGTH, 16, 2, 2), random.key(0))
    # Large weights, so that the most probable token is clear.
    return tree.map(lambda x: x * 8 if x.ndim == 2 else x, model)


def prompts(batch, length, seed=0):
    return np.random.default_rng(seed).integers(0, WORDS, (batch, length)).astype("int32")


def slow(model, tokens, count):
    """One full pass for each token, over an array that is as long as the model allows."""
    tokens = np.pad(tokens, ((0, 0), (0, count)))
    for position in range(tokens.shape[1] - count, tokens.shape[1]):
        logits = np.asarray(model(np.pad(tokens, ((0, 0), (0, LENGTH - tokens.shape[1]))), train=False))
        tokens[:, position] = logits[:, position - 1].argmax(-1)
    return tokens


@pytest.mark.quick("33-2")
@pytest.mark.parametrize(("length", "count"), [(1, 4), (5, 3), (33, 2), (40, 30), (70, 10)])
def test_the_most_probable_tokens(model, length, count):
    tokens = prompts(2, length)
    np.testing.assert_array_equal(generate(model, tokens, count, max_length=LENGTH), slow(model, tokens, count))


def test_one_function_serves_all_lengths(model):
    generate(model, prompts(2, 3), 2, max_length=LENGTH)
    with counted() as events:
        for length, count in ((1, 1), (7, 9), (64, 16), (40, 1)):
            generate(model, prompts(2, length), count, max_length=LENGTH)
    assert events.compiles == 0 and events.loads == 0


@pytest.mark.slow
def test_sinusoidal_positions_go_on_in_the_cache():
    model = TransformerLanguageModel.create(TransformerConfig(WORDS, 16, 2, 16, max_length=LENGTH), random.key(3))
    tokens = prompts(2, 36)
    np.testing.assert_array_equal(generate(model, tokens, 5, max_length=LENGTH), slow(model, tokens, 5))


@pytest.mark.slow
def test_shorter_prompts_in_a_batch(model):
    tokens, lengths = prompts(3, 45), np.array([45, 3, 34])
    result = generate(model, tokens, 8, max_length=LENGTH, lengths=lengths)
    for row, length in enumerate(lengths):
        alone = generate(model, tokens[row : row + 1, :length], 53 - length, max_length=LENGTH)
        np.testing.assert_array_equal(result[row], alone[0])


def test_the_end_token_is_repeated(model):
    tokens = prompts(2, 4)
    free = generate(model, tokens, 12, max_length=LENGTH)
    end = int(free[0, 7])
    result = generate(model, tokens, 12, max_length=LENGTH, end_token=end)
    for row, other in zip(result, free, strict=True):
        first = np.flatnonzero(other[4:] == end)
        size = 4 + first[0] if first.size else len(other)
        np.testing.assert_array_equal(row[:size], other[:size])
        assert (row[size:] == end).all()


@pytest.mark.quick("1-None")
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (4, None), (None, 0.7), (6, 0.5), (1, None), (None, 1e-6)])
def test_draws_have_the_probabilities_of_the_model(model, top_k, top_p):
    count, temperature = 4000, 3.0
    tokens = np.tile(prompts(1, 5), (count, 1))
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "key": random.key(1)}
    drawn = generate(model, tokens, 1, max_length=16, **settings)[:, -1]
    logits = np.asarray(model(tokens[:1], train=False))[0, -1].astype("float64") / temperature
    order = np.argsort(-logits)
    p = np.exp(logits - logits.max())
    p[order[top_k or WORDS :]] = 0
    p /= p.sum()
    if top_p is not None:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p]] = 0
        p /= p.sum()
    share = np.bincount(drawn, minlength=WORDS) / count
    assert (share[p == 0] == 0).all()
    assert np.abs(share - p).max() < 5 * np.sqrt(0.25 / count)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"temperature": 1e-40}, {"temperature": 1e-50, "top_k": 2**40}])
def test_the_smallest_temperatures_take_the_most_probable_token(model, settings):
    drawn = generate(model, prompts(2, 4), 6, max_length=LENGTH, key=random.key(0), **settings)
    np.testing.assert_array_equal(drawn, generate(model, prompts(2, 4), 6, max_length=LENGTH))


def test_padding_need_not_be_a_token(model):
    tokens = prompts(2, 5)
    padded = np.where(np.arange(5) < [[5], [2]], tokens, -1)
    result = generate(model, padded, 3, max_length=LENGTH, lengths=[5, 2])
    np.testing.assert_array_equal(result, generate(model, tokens, 3, max_length=LENGTH, lengths=[5, 2]))


@pytest.mark.slow
def test_equal_keys_draw_equal_tokens(model):
    settings = {"max_length": LENGTH, "temperature": 2.0}
    first, again, other = (generate(model, prompts(1, 4), 20, key=random.key(k), **settings) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("name", ["GPT2", "TransformerLanguageModel"])
def test_caches_are_not_longer_than_the_positions(model, name):
    if name == "TransformerLanguageModel":
        config = TransformerConfig(WORDS, 16, 2, 16, max_length=LENGTH)
        model = tvmfun.jit(partial(TransformerLanguageModel.create, config))(random.key(3))
    with pytest.raises(ShapeError, match=rf"^\[{name}\] .* = {LENGTH} tokens, got {LENGTH + 1}"):
        generate(model, prompts(1, 3), 2, max_length=LENGTH + 1)


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (ShapeError, {"prompts": np.zeros((2, 0), "int32")}),
        (ShapeError, {"prompts": np.zeros(3, "int32")}),
        (ShapeError, {"max_length": 5}),
        (ShapeError, {"lengths": [0, 3]}),
        (ShapeError, {"lengths": [3]}),
        (ShapeError, {"prompts": np.zeros((0, 3), "int32")}),
        (DtypeError, {"prompts": np.ones((2, 3))}),
        (DtypeError, {"prompts": "text"}),
        (ArgumentError, {"max_new_tokens": -1}),
        (ArgumentError, {"temperature": -1.0}),
        (ArgumentError, {"temperature": float("nan")}),
        (ArgumentError, {"temperature": 1.0}),
        (ArgumentError, {"temperature": 1.0, "top_k": 0, "key": random.key(0)}),
        (ArgumentError, {"temperature": 1.0, "top_p": 1.5, "key": random.key(0)}),
    ],
)
def test_errors(model, error, changes):
    arguments = {"prompts": prompts(2, 3), "max_new_tokens": 4, "max_length": 16} | changes
    with pytest.raises(error, match=r"^\[generate\]"):
        generate(model, **arguments)


@pytest.mark.parametrize("token", [WORDS, -1, 10**6])
def test_tokens_that_the_model_does_not_have(model, token):
    tokens = prompts(2, 5)
    tokens[1, 3] = token
    with pytest.raises(IndexingError, match=f"tokens must be from 0 to 16, got {token} at position 3 of prompt 1"):
        generate(model, tokens, 2, max_length=LENGTH)
