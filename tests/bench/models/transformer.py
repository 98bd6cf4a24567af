"""Transformers: BERT, trained to fill in masked words, and GPT-2, trained to predict the next one; both with AdamW."""

from dataclasses import dataclass, replace

import torch
from bench.case import Case
from bench.models import common


@dataclass(frozen=True)
class Sizes:
    """The sizes of a transformer and of its batch."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int
    rate: float = 0.0
    causal: bool = False
    precision: str = "float32"
    is_fused: bool = False

    @property
    def tokens(self):
        """The number of tokens in a batch."""
        return self.length * self.batch


def params(sizes):
    """Normal numbers of standard deviation 0.02, as both papers have it."""
    width = sizes.width

    def make(rng):
        result = {
            "words": common.normal(rng, (sizes.vocabulary, width), 0.02),
            "places": common.normal(rng, (sizes.length, width), 0.02),
            "scale": common.ones((width,)),
            "shift": common.zeros((width,)),
            "bias_words": common.zeros((sizes.vocabulary,)),
        }
        for i in range(sizes.layers):
            shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
            shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
            for name, shape in shapes.items():
                result[f"dense_{name}{i}"] = common.normal(rng, shape, 0.02)
                result[f"bias_{name}{i}"] = common.zeros(shape[1:])
            for name in ("a", "b"):
                result[f"scale_{name}{i}"], result[f"shift_{name}{i}"] = common.ones((width,)), common.zeros((width,))
        return result

    return make


def batch(sizes):
    """Words, the words to predict, and which of them count."""

    def make(rng):
        words = rng.integers(0, sizes.vocabulary, (sizes.batch, sizes.length)).astype("int32")
        targets = rng.integers(0, sizes.vocabulary, words.shape).astype("int32")
        counts = (rng.random(words.shape) < (1.0 if sizes.causal else 0.15)).astype("float32")
        return {"words": words, "targets": targets, "counts": counts}

    return make


def layers(sizes, x, drop, norm, attention, feed):
    """All layers around their parts, in any framework: GPT-2 normalizes before each part, BERT after it."""
    x = x if sizes.causal else drop(norm(x, ""))
    for i in range(sizes.layers):
        if sizes.causal:
            x = x + attention(norm(x, f"_a{i}"), i)
            x = x + feed(norm(x, f"_b{i}"), i)
        else:
            x = norm(x + attention(x, i), f"_a{i}")
            x = norm(x + feed(x, i), f"_b{i}")
    return norm(x, "") if sizes.causal else x


def loss(sizes):
    """Cross-entropy over the vocabulary."""
    head = sizes.width // sizes.heads

    def call(ns, params, state, batch, key):
        np, nn = ns.np, ns.nn
        keys = None if key is None or not sizes.rate else iter(ns.random.split(key, 3 * sizes.layers + 1))
        drop = lambda x: x if keys is None else common.dropout(ns, next(keys), x, sizes.rate)
        single = lambda x: x.astype("float32")
        matmul = lambda x, w: single(ns.operand(x) @ ns.operand(w))
        einsum = lambda equation, x, y: single(np.einsum(equation, ns.operand(x), ns.operand(y)))
        dense = lambda x, name: matmul(x, params[f"dense_{name}"]) + params[f"bias_{name}"]
        norm = lambda x, name: common.layer_norm(ns, x, params[f"scale{name}"], params[f"shift{name}"])

        def attention(x, i):
            split = lambda name: dense(x, f"{name}{i}").reshape(sizes.batch, sizes.length, sizes.heads, head)
            if sizes.is_fused and (keys is None or ns.attention_drops):
                q, k, v = (ns.operand(split(name)) for name in "qkv")
                options = {} if keys is None else {"dropout_rate": sizes.rate, "dropout_key": next(keys)}
                mixed = single(nn.dot_product_attention(q, k, v, is_causal=sizes.causal, **options))
                return drop(dense(mixed.reshape(x.shape), f"o{i}"))
            scores = einsum("bqhd,bkhd->bhqk", split("q"), split("k")) * head**-0.5
            if sizes.causal:
                places = np.arange(sizes.length)
                scores = np.where(places[:, None] >= places, scores, -np.inf)
            mixed = einsum("bhqk,bkhd->bqhd", drop(nn.softmax(scores)), split("v"))
            return drop(dense(mixed.reshape(x.shape), f"o{i}"))

        feed = lambda x, i: drop(dense(nn.gelu(dense(x, f"up{i}")), f"down{i}"))
        x = params["words"][batch["words"]] + params["places"]
        x = layers(sizes, x, drop, norm, attention, feed)
        logits = matmul(x, params["words"].T) + params["bias_words"]
        return common.cross_entropy(ns, logits, batch["targets"], batch["counts"]), state

    return call


def torch_loss(sizes):
    """The same, with PyTorch's fused attention."""
    head = sizes.width // sizes.heads

    def call(params, state, batch, train):
        F = torch.nn.functional
        drop = lambda x: F.dropout(x, sizes.rate, train) if sizes.rate else x
        dense = lambda x, name: F.linear(x, params[f"dense_{name}"], params[f"bias_{name}"])
        norm = lambda x, name: F.layer_norm(x, (sizes.width,), params[f"scale{name}"], params[f"shift{name}"], 1e-5)

        def attention(x, i):
            split = lambda name: dense(x, f"{name}{i}").view(sizes.batch, sizes.length, sizes.heads, head)
            q, k, v = (split(name).transpose(1, 2) for name in "qkv")
            rate = sizes.rate if train else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=sizes.causal)
            return drop(dense(mixed.transpose(1, 2).reshape(x.shape), f"o{i}"))

        feed = lambda x, i: drop(dense(F.gelu(dense(x, f"up{i}"), approximate="tanh"), f"down{i}"))
        x = F.embedding(batch["words"], params["words"]) + params["places"]
        x = layers(sizes, x, drop, norm, attention, feed)
        logits = F.linear(x, params["words"], params["bias_words"])
        each = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten().long(), reduction="none")
        counts = batch["counts"].flatten()
        return (each * counts).sum() / counts.sum()

    return call


def case(name, sizes):
    """A transformer as a case."""
    scores = 2 * sizes.length * sizes.width  # of each token, with all others, and the mixing
    weights = sizes.layers * (12 * sizes.width**2 + scores) + sizes.vocabulary * sizes.width
    return Case(
        name,
        params(sizes),
        batch(sizes),
        loss(sizes),
        torch_loss(sizes),
        lambda optim: optim.adamw(1e-4, weight_decay=0.01),
        lambda params: torch.optim.AdamW(params, 1e-4, weight_decay=0.01, fused=True),
        flop=6 * sizes.tokens * weights,
        traffic=7,
        precision=sizes.precision,
    )


SIZES = {
    "BERT, 4 layers": Sizes(4, 256, 4, 8192, 128, 8, rate=0.1),
    "GPT-2 mini": Sizes(6, 384, 6, 8192, 256, 8, causal=True),
    "BERT-base": Sizes(12, 768, 12, 30522, 128, 4, rate=0.1),
    "GPT-2 124M": Sizes(12, 768, 12, 50257, 128, 1, causal=True),
}
SIZES |= {f"{name}, bfloat16": replace(sizes, precision="bfloat16") for name, sizes in SIZES.items()}
CASES = [case(name, sizes) for name, sizes in SIZES.items()]
