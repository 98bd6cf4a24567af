"""The models' definitions apart from their numbers, which other tests compare with PyTorch's."""

import re
from dataclasses import replace

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, optim, random, tree
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.models import (
    BERT,
    DLRM,
    GPT2,
    BERTConfig,
    DLRMConfig,
    GPT2Config,
    LSTMConfig,
    LSTMLanguageModel,
    ResNet,
    ResNetConfig,
    TransformerConfig,
    TransformerLanguageModel,
    language_model_loss,
)

KEY = random.key(0)
TOKENS = np.random.default_rng(0).integers(0, 20, (3, 8))
BERT_CONFIG = BERTConfig(20, 16, 2, 2, 32, 12, next_sentence=True)


def size(model):
    return sum(leaf.size for leaf in tree.leaves(model))


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        (lambda: GPT2.create(GPT2Config(), KEY), 124.4),
        (lambda: GPT2.create(GPT2Config.medium(), KEY), 354.8),
        (lambda: BERT.create(BERTConfig(next_sentence=True), KEY), 110.1),
        (lambda: BERT.create(BERTConfig.large(), KEY), 335.2),
        (lambda: ResNet.create(ResNetConfig.resnet18(), KEY), 11.69),
        (lambda: ResNet.create(ResNetConfig.resnet50(), KEY), 25.56),
    ],
    ids=["gpt2", "gpt2-medium", "bert", "bert-large", "resnet18", "resnet50"],
)
def test_numbers_of_parameters(make, millions):
    model = tvmfun.eval_shape(make)
    assert size(model) / 1e6 == pytest.approx(millions, rel=2e-3)


def test_a_bert_begins_with_the_deviation_of_its_configuration():
    config = BERTConfig.mini(100)
    model = BERT.create(replace(config, initializer_range=0.5), KEY)
    for weight in (model.words.weight, model.blocks[0].intermediate.weight, model.word_head.transform.weight):
        assert float(tnp.std(weight)) == pytest.approx(0.5, rel=0.05)
    assert BERTConfig.large(100).vocab_size == 100


def gpt2():
    model = GPT2.create(GPT2Config(20, 12, 16, 2, 2, dropout=0.2), KEY)
    return model, lambda model, **settings: tnp.sum(model(TOKENS, **settings) ** 2)


def bert():
    model = BERT.create(BERT_CONFIG, KEY)
    return model, lambda model, **settings: tnp.sum(model(TOKENS, **settings).words ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, bert])
def test_checkpoints_change_nothing(make):
    model, loss = make()
    gradient = tvmfun.jit(tvmfun.grad(loss), static_argnames=("train", "checkpoint"))
    plain = gradient(model, key=KEY)
    again = gradient(model, key=KEY, checkpoint=True)
    for a, b in zip(tree.leaves(plain), tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, bert])
def test_dropout_draws_from_the_key(make):
    model, loss = make()
    value = tvmfun.jit(loss, static_argnames="train")
    first, again, other = (float(value(model, key=random.key(k))) for k in (0, 0, 1))
    assert first == again != other
    with pytest.raises(ArgumentError, match="a key is needed for training"):
        loss(model)


@pytest.mark.slow
def test_without_dropout_training_needs_no_key():
    model = GPT2.create(GPT2Config(20, 12, 16, 2, 2, dropout=0.0), KEY)
    np.testing.assert_array_equal(model(TOKENS), model(TOKENS, train=False))
    model = LSTMLanguageModel.create(LSTMConfig(20, 8, 8, 2, dropout=0.0), KEY)
    np.testing.assert_array_equal(model(TOKENS)[0], model(TOKENS, train=False)[0])


def test_a_causal_model_does_not_look_ahead():
    for model in (gpt2()[0], TransformerLanguageModel.create(TransformerConfig(20, 16, 2, 16, max_length=12), KEY)):
        other = TOKENS.copy()
        other[:, 5:] = 0
        a, b = (np.asarray(model(tokens, train=False)) for tokens in (TOKENS, other))
        np.testing.assert_allclose(a[:, :5], b[:, :5], rtol=1e-5, atol=1e-6)
        assert (a[:, 6] != b[:, 6]).any()


@pytest.mark.slow
def test_bert_sees_neither_padding_nor_what_it_need_not_predict():
    model = BERT.create(BERT_CONFIG, KEY)
    lengths, other = np.array([8, 3, 5]), TOKENS.copy()
    other[1, 3:] = 7
    segments = (np.arange(8) > 3).astype("int32") + np.zeros_like(TOKENS)
    a, b = (model(tokens, segments, lengths, train=False) for tokens in (TOKENS, other))
    np.testing.assert_allclose(a.words[1, :3], b.words[1, :3], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a.next_sentence, b.next_sentence, rtol=1e-5, atol=1e-6)
    positions = np.array([[1, 4], [0, 2], [3, 3]])
    some = model(TOKENS, segments, lengths, positions, train=False).words
    np.testing.assert_allclose(
        some, np.take_along_axis(np.asarray(a.words), positions[..., None], 1), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_an_lstm_goes_on_from_its_state():
    model = LSTMLanguageModel.create(LSTMConfig(20, 8, 8, tied=True), KEY)
    whole, _ = model(TOKENS, train=False)
    first, state = model(TOKENS[:, :3], model.init_state(3), train=False)
    second, _ = model(TOKENS[:, 3:], state, train=False)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_dlrm_updates_only_the_rows_of_a_batch_in_place():
    model = DLRM.create(DLRMConfig((1000, 500), 3, 8, (8,), (8,)), KEY)
    before = np.array(model.tables[0].weight.array)
    optimizer = optim.lazy(optim.adam(0.1))
    x, ids, clicks = (
        np.ones((4, 3), "float32"),
        np.array([[1, 2], [1, 3], [999, 2], [7, 0]]),
        np.array([1.0, 0, 1, 0], "float32"),
    )

    def step(model, state):
        loss = lambda model: tnp.mean(nn.losses.sigmoid_binary_cross_entropy(model(x, ids), clicks))
        updates, state = optimizer.update(tvmfun.grad(loss)(model), state, model)
        return optim.apply_updates(model, updates), state

    model, _ = tvmfun.jit(step, donate_argnums=(0, 1))(model, optimizer.init(model))
    changed = np.flatnonzero((np.asarray(model.tables[0].weight.array) != before).any(1))
    assert changed.tolist() == [1, 7, 999]


@pytest.mark.slow
def test_a_resnet_trains_and_evaluates():
    model = ResNet.create(ResNetConfig((1, 1), width=4, num_classes=3, in_channels=1, small_images=True), KEY)
    images = np.random.default_rng(0).normal(size=(5, 8, 8, 1)).astype("float32")
    state = nn.init_state(model)
    logits, new = model(images, state)
    assert logits.shape == (5, 3) and tree.structure(new) == tree.structure(state)
    alone, same = model(images[:1], new, train=False)
    np.testing.assert_allclose(alone, model(images, new, train=False)[0][:1], rtol=1e-4, atol=1e-5)
    assert tree.all(tree.map(lambda a, b: bool((a == b).all()), same, new))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GPT2Config(n_embd=10, n_head=3), "[GPT2Config] n_head must divide n_embd, got 3 and 10"),
        (lambda: GPT2Config(vocab_size=0), "[GPT2Config] vocab_size must be positive, got 0"),
        (lambda: BERTConfig(hidden_size=10, num_attention_heads=3), "num_attention_heads must divide hidden_size"),
        (lambda: BERTConfig(num_hidden_layers=0), "num_hidden_layers must be positive"),
        (lambda: DLRMConfig(()), "there must be a table"),
        (lambda: DLRMConfig((4, 0)), "[DLRMConfig] table_sizes must be positive, got (4, 0)"),
        (lambda: ResNetConfig((0,)), "blocks must be positive"),
        (lambda: TransformerConfig(10, 10, 3), "nhead must divide d_model"),
        (lambda: LSTMConfig(10, num_layers=0), "[LSTMConfig] num_layers must be positive, got 0"),
        (lambda: LSTMConfig(10, 8, 9, tied=True), "embedding_size = hidden_size"),
    ],
)
def test_sizes_are_checked(make, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        make()


@pytest.mark.quick("<lambda>2")
@pytest.mark.parametrize(
    "call",
    [
        lambda: gpt2()[0](np.zeros((1, 13), "int32"), train=False),
        lambda: bert()[0](np.zeros((1, 13), "int32"), train=False),
        lambda: TransformerLanguageModel.create(TransformerConfig(9, 8, 2, 8, max_length=4), KEY)(TOKENS, train=False),
        lambda: DLRM.create(DLRMConfig((5, 5), 3, 4, (4,), (4,)), KEY)(np.ones((2, 3)), np.zeros((2, 3), "int32")),
    ],
)
def test_shapes_are_checked(call):
    with pytest.raises(ShapeError):
        call()


@pytest.mark.slow
def test_weights_leave_targets_out():
    logits, targets = np.random.default_rng(0).normal(size=(4, 5)).astype("float32"), np.array([0, 1, 2, 3])
    whole = language_model_loss(logits[:2], targets[:2])
    weights = np.array([1.0, 1, 0, 0], "float32")
    np.testing.assert_allclose(language_model_loss(logits, targets, weights), whole, rtol=1e-6)
