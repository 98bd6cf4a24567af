"""Beam search, compared with the scores of all sequences."""

from itertools import product

import numpy as np
import pytest

from tvmfun import nn, random, tree
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.models import TransformerConfig, Translator, beam_search

WORDS, BEGIN, END, LENGTH = 6, 0, 1, 4
SOURCE, LENGTHS = np.random.default_rng(0).integers(0, WORDS, (3, 5)), np.array([5, 2, 4])


@pytest.fixture(scope="module")
def model():
    config = TransformerConfig(WORDS, 16, 2, 24, 2, 0.0, 16)
    return tree.map(lambda x: x * 2 if x.ndim == 2 else x, Translator.create(config, random.key(1), "float64"))


def all_sequences():
    """All sequences of targets, each ended one once."""
    found = set()
    for rest in product(range(WORDS), repeat=LENGTH - 1):
        size = rest.index(END) + 1 if END in rest else len(rest)
        found.add((BEGIN, *rest[:size], *[END] * (len(rest) - size)))
    return np.array(sorted(found))


def scores_of(model, row, targets, penalty):
    """The log-probabilities of targets, divided by the power of their lengths."""
    source = np.repeat(SOURCE[row : row + 1], len(targets), 0)
    logp = np.asarray(nn.log_softmax(model(source, targets, np.repeat(LENGTHS[row], len(targets)), train=False)))
    chosen = np.take_along_axis(logp[:, :-1], targets[:, 1:, None], -1)[..., 0]
    counts = np.cumsum(np.pad(targets[:, 1:-1] == END, ((0, 0), (1, 0))), 1) == 0
    return (chosen * counts).sum(1) / (1 + counts.sum(1)) ** penalty


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_wide_beams_find_the_best_of_all(model, penalty):
    # With as many beams as there are beginnings nothing is lost.
    settings = {"begin_token": BEGIN, "end_token": END, "max_length": LENGTH}
    found = beam_search(model, SOURCE, LENGTHS, beams=WORDS, length_penalty=penalty, **settings)
    targets = all_sequences()
    for row in range(3):
        scores = scores_of(model, row, targets, penalty)
        best = np.argsort(-scores)[:2]
        np.testing.assert_array_equal(found.tokens[row, 0], targets[best[0]])
        np.testing.assert_allclose(found.scores[row, 0], scores[best[0]], rtol=1e-5)
        tokens = np.asarray(found.tokens[row])
        assert len({tuple(sequence) for sequence in tokens}) == WORDS
        np.testing.assert_allclose(found.scores[row], scores_of(model, row, tokens, penalty), rtol=1e-5)


@pytest.mark.slow
def test_one_beam_is_a_greedy_search(model):
    found = beam_search(model, SOURCE, LENGTHS, begin_token=BEGIN, end_token=END, max_length=7, beams=1)
    tokens = np.full((3, 7), END)
    tokens[:, 0] = BEGIN
    for position in range(6):
        chosen = np.asarray(model(SOURCE, tokens, LENGTHS, train=False))[:, position].argmax(-1)
        ended = (tokens[:, 1 : position + 1] == END).any(1)
        tokens[:, position + 1] = np.where(ended, END, chosen)
    np.testing.assert_array_equal(found.tokens[:, 0], tokens)


@pytest.mark.slow
def test_errors(model):
    settings = {"begin_token": BEGIN, "end_token": END}
    with pytest.raises(ArgumentError, match="beams must be from 1 to 6"):
        beam_search(model, SOURCE, max_length=4, beams=7, **settings)
    with pytest.raises(ArgumentError, match="begin_token and end_token must be from 0 to 5, got 0 and 6"):
        beam_search(model, SOURCE, max_length=4, begin_token=BEGIN, end_token=6)
    with pytest.raises(ShapeError, match="max_length must be positive, got 0"):
        beam_search(model, SOURCE, max_length=0, **settings)
    with pytest.raises(ShapeError, match="at most max_length = 16 tokens, got 17"):
        beam_search(model, SOURCE, max_length=17, **settings)
    with pytest.raises(ShapeError, match="at most max_length = 16"):
        model(np.zeros((1, 17), "int32"), SOURCE[:1])
