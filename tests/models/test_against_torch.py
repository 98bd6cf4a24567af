"""Each model beside PyTorch's and transformers': loss, every gradient, five steps of AdamW, state dicts both ways."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, optim, random
from tvmfun.checkpoints.safetensors import write_arrays
from tvmfun.interop.state_dict import from_state_dict, to_state_dict, to_torch
from tvmfun.models import bert, dlrm, generation, gpt2, resnet, translation, word_models

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.interop

BATCH, LENGTH, WORDS = 4, 9, 31
GPT2 = gpt2.GPT2Config(WORDS, 24, 16, 2, 2, 0.0)
BERT = bert.BERTConfig(WORDS, 16, 2, 2, 32, 24, dropout=0.0, next_sentence=True)
TRANSFORMER = word_models.TransformerConfig(WORDS, 16, 2, 24, 2, 0.0, 24)
# Few features, so that both libraries round alike where an activation is near its kink.
RECOMMENDER = dlrm.DLRMConfig((30, 20, 10), 4, 8, (16,), (12, 6), sparse=False)


def cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def tokens(rng):
    return rng.integers(1, WORDS, (BATCH, LENGTH))


def gpt2_case(dtype):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2}
    rates = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": None, "eos_token_id": None}
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates))
    loss = lambda model, x: gpt2.language_model_loss(model(x[:, :-1]), x[:, 1:])
    theirs = lambda module, x: cross_entropy(module(x[:, :-1]).logits, x[:, 1:])
    return gpt2.GPT2.create(GPT2, random.key(0), dtype), module, gpt2.GPT2_STATE_DICT, loss, theirs, (tokens,)


def bert_case(dtype):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 24}
    rates = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    module = transformers.BertForPreTraining(transformers.BertConfig(**sizes, **rates))
    lengths = np.array([LENGTH, 3, 6, LENGTH])

    def loss(model, x, segments):
        words, sentence = model(x, segments, lengths)
        return gpt2.language_model_loss(words[:, :3], x[:, :3]) + gpt2.language_model_loss(sentence, segments[:, 0])

    def theirs(module, x, segments):
        mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
        out = module(x, attention_mask=mask, token_type_ids=segments)
        sentence = cross_entropy(out.seq_relationship_logits, segments[:, 0])
        return cross_entropy(out.prediction_logits[:, :3], x[:, :3]) + sentence

    table = bert.BERT_STATE_DICT + bert.NEXT_SENTENCE_STATE_DICT
    model = bert.BERT.create(BERT, random.key(0), dtype)
    return model, module, table, loss, theirs, (tokens, lambda rng: rng.integers(0, 2, (BATCH, LENGTH)))


def transformer_case(dtype):
    from support import torch_models

    model = word_models.TransformerLanguageModel.create(TRANSFORMER, random.key(0), dtype)
    module = torch_models.TransformerLanguageModel(TRANSFORMER)
    loss = lambda model, x: gpt2.language_model_loss(model(x[:, :-1]), x[:, 1:])
    theirs = lambda module, x: cross_entropy(module(x[:, :-1]), x[:, 1:])
    return model, module, word_models.transformer_state_dict(), loss, theirs, (tokens,)


def lstm_case(dtype, tied=False):
    from support import torch_models

    config = word_models.LSTMConfig(WORDS, 12, 12, 2, 0.0, tied)
    model = word_models.LSTMLanguageModel.create(config, random.key(0), dtype)
    loss = lambda model, x: gpt2.language_model_loss(model(x[:, :-1])[0], x[:, 1:])
    theirs = lambda module, x: cross_entropy(module(x[:, :-1])[0], x[:, 1:])
    table = word_models.lstm_state_dict(config)
    return model, torch_models.LSTMLanguageModel(config), table, loss, theirs, (tokens,)


def tied_lstm_case(dtype):
    return lstm_case(dtype, tied=True)


def translator_case(dtype):
    from support import torch_models

    lengths = np.array([LENGTH, 4, 2, 6])
    model = translation.Translator.create(TRANSFORMER, random.key(0), dtype)
    loss = lambda model, x, y: gpt2.language_model_loss(model(x, y[:, :-1], lengths), y[:, 1:])
    theirs = lambda module, x, y: cross_entropy(module(x, y[:, :-1], torch.tensor(lengths)), y[:, 1:])
    module = torch_models.Translator(TRANSFORMER)
    return model, module, translation.translator_state_dict(), loss, theirs, (tokens, tokens)


def dlrm_case(dtype):
    from support import torch_models

    features = lambda rng: rng.normal(size=(BATCH, 4))
    ids = lambda rng: rng.integers(0, 10, (BATCH, 3))
    clicks = lambda rng: rng.integers(0, 2, BATCH).astype("float64")
    loss = lambda model, x, i, y: tnp.mean(
        nn.losses.sigmoid_binary_cross_entropy(model(x.astype(dtype), i), y.astype(dtype))
    )

    def theirs(module, x, i, y):
        logits = module(x.to(next(module.parameters()).dtype), i)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))

    model = dlrm.DLRM.create(RECOMMENDER, random.key(0), dtype)
    return (
        model,
        torch_models.DLRM(RECOMMENDER),
        dlrm.dlrm_state_dict(RECOMMENDER),
        loss,
        theirs,
        (features, ids, clicks),
    )


CASES = {
    "gpt2": gpt2_case,
    "bert": bert_case,
    "transformer": transformer_case,
    "lstm": lstm_case,
    "tied lstm": tied_lstm_case,
    "translator": translator_case,
    "dlrm": dlrm_case,
}
# Relative to the largest element of an array.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}


def assert_close(ours, theirs, tolerance):
    for name, value in theirs.items():
        value = value.detach().numpy()
        scale = max(np.abs(value).max(), 1e-3)
        assert np.abs(ours[name] - value).max() <= tolerance * scale, name


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", CASES)
def test_five_steps_are_those_of_pytorch(name, dtype):
    torch.manual_seed(0)
    model, module, table, loss, theirs, draws = CASES[name](dtype)
    module = module.to(getattr(torch, dtype))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model = from_state_dict(model, module, table)
    optimizer, reference = optim.adamw(1e-3), torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=1e-4)
    state, rng = optimizer.init(model), np.random.default_rng(0)
    batch = [draw(rng) for draw in draws]

    @tvmfun.jit
    def step(model, state, *batch):
        value, gradients = tvmfun.value_and_grad(loss)(model, *batch)
        updates, state = optimizer.update(gradients, state, model)
        return optim.apply_updates(model, updates), state, value, gradients

    for _ in range(5):
        model, state, value, gradients = step(model, state, *batch)
        reference.zero_grad()
        expected = theirs(module, *map(torch.tensor, batch))
        expected.backward()
        assert float(value) == pytest.approx(expected.item(), rel=TOLERANCES[dtype])
        named = {name: parameter.grad for name, parameter in module.named_parameters()}
        assert_close(to_state_dict(gradients, table), named, TOLERANCES[dtype])
        reference.step()
    # An Adam update is a quotient of gradients, and as uncertain as the smallest of them.
    assert_close(to_state_dict(model, table), dict(module.named_parameters()), 100 * TOLERANCES[dtype])


@pytest.mark.parametrize("name", CASES)
def test_state_dicts_load_there_strictly(name, tmp_path):
    model, module, table, *_ = CASES[name]("float32")
    arrays = to_state_dict(model, table)
    module.load_state_dict(to_torch(arrays), strict=True)
    for leaf, other in zip(
        tvmfun.tree.leaves(model), tvmfun.tree.leaves(from_state_dict(model, module, table)), strict=True
    ):
        np.testing.assert_array_equal(leaf, other)
    safetensors = pytest.importorskip("safetensors.torch")
    tied = {row.name for row in table if row.tied}
    tensors = {k: v.clone() for k, v in module.state_dict().items() if k not in tied}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    again = from_state_dict(model, tmp_path / "model.safetensors", table)
    np.testing.assert_array_equal(tvmfun.tree.leaves(model)[0], tvmfun.tree.leaves(again)[0])


@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("small_images", [False, True])
def test_resnet(bottleneck, small_images):
    from support import torch_models

    torch.manual_seed(0)
    config = resnet.ResNetConfig((1, 2), bottleneck, 8, 7, small_images=small_images)
    module, table = torch_models.ResNet(config).double(), resnet.resnet_state_dict(config)
    model = resnet.ResNet.create(config, random.key(0), "float64")
    ignore = r".*\.num_batches_tracked"
    model, statistics = from_state_dict((model, nn.init_state(model)), module, table, ignore=ignore)
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(4, 20, 20, 3)), rng.integers(0, 7, 4)
    optimizer, reference = optim.sgd(0.05, 0.9), torch.optim.SGD(module.parameters(), 0.05, 0.9)
    state = optimizer.init(model)

    def loss(model, statistics):
        logits, statistics = model(images, statistics)
        return nn.losses.cross_entropy(logits, labels), statistics

    @tvmfun.jit
    def step(model, statistics, state):
        (value, statistics), gradients = tvmfun.value_and_grad(loss, has_aux=True)(model, statistics)
        updates, state = optimizer.update(gradients, state, model)
        return optim.apply_updates(model, updates), statistics, state, value, gradients

    for _ in range(5):
        model, statistics, state, value, gradients = step(model, statistics, state)
        reference.zero_grad()
        expected = cross_entropy(module(torch.tensor(images)), torch.tensor(labels))
        expected.backward()
        assert float(value) == pytest.approx(expected.item(), rel=1e-9)
        named = {name: parameter.grad for name, parameter in module.named_parameters()}
        assert_close(to_state_dict((gradients, statistics), table), named, 1e-9)
        reference.step()
    arrays = to_state_dict((model, statistics), table)
    assert_close(arrays, {k: v for k, v in module.state_dict().items() if "tracked" not in k}, 1e-9)
    logits, _ = model(images, statistics, train=False)
    np.testing.assert_allclose(logits, module.eval()(torch.tensor(images)).detach().numpy(), rtol=1e-9, atol=1e-9)
    module.load_state_dict(to_torch(arrays), strict=True)


@pytest.mark.parametrize(("length", "count"), [(1, 3), (5, 20), (40, 30), (70, 26)])
def test_generation_token_for_token(length, count):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 101, "n_positions": 96, "n_embd": 48, "n_layer": 3, "n_head": 4}
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    module = module.double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model = gpt2.GPT2.create(gpt2.GPT2Config(101, 96, 48, 3, 4), random.key(0), "float64")
    model = from_state_dict(model, module, gpt2.GPT2_STATE_DICT)
    prompts = torch.tensor(np.random.default_rng(length).integers(0, 101, (2, length)))
    settings = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompts)}
    expected = module.generate(prompts, max_new_tokens=count, **settings).numpy()
    np.testing.assert_array_equal(generation.generate(model, prompts.numpy(), count, max_length=96), expected)


def test_names_without_a_prefix_and_masks_as_in_the_published_file(tmp_path):
    model, module, table, *_ = gpt2_case("float32")
    arrays = {name: array.numpy() for name, array in module.transformer.state_dict().items()}
    masks = {f"h.{i}.attn.bias": np.ones((1, 1, 24, 24), "float32") for i in range(2)}
    published = [row._replace(name=row.name.removeprefix("transformer.")) for row in table]
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        write_arrays(file, arrays | masks, {})
    loaded = from_state_dict(model, path, published, ignore=r".*\.attn\.(masked_)?bias")
    written = to_state_dict(loaded, [row for row in published if not row.tied])
    assert_close(written, module.transformer.state_dict(), 0)
    module.transformer.load_state_dict(to_torch(written), strict=True)
