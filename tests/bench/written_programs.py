"""Programs as people write them, in plain array code; each takes the namespaces of tvmfun or JAX."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1] if shape else 1)).astype("float32")


def _dense(*sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(_normal(m, n), np.zeros(n, "float32")) for m, n in pairwise(sizes)]


def _mlp(ns: SimpleNamespace, params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = ns.np.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def _softmax(ns: SimpleNamespace, x: Any) -> Any:
    e = ns.np.exp(x - ns.np.max(x, axis=-1, keepdims=True))
    return e / ns.np.sum(e, axis=-1, keepdims=True)


def _layer_norm(ns: SimpleNamespace, x: Any, scale: Any, shift: Any) -> Any:
    mean = ns.np.mean(x, axis=-1, keepdims=True)
    variance = ns.np.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / ns.np.sqrt(variance + 1e-5) * scale + shift


def _gelu(ns: SimpleNamespace, x: Any) -> Any:
    return 0.5 * x * (1 + ns.np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def _attend(ns: SimpleNamespace, p: Any, x: Any, memory: Any, mask: Any, heads: int) -> Any:
    batch, length, width = x.shape
    split = lambda y: y.reshape(batch, y.shape[1], heads, width // heads)
    q, k, v = split(x @ p["q"]), split(memory @ p["k"]), split(memory @ p["v"])
    scores = ns.np.einsum("bqhd,bkhd->bhqk", q, k) / np.float32((width // heads) ** 0.5)
    weights = _softmax(ns, ns.np.where(mask, scores, -1e9))
    return ns.np.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width) @ p["o"]


def _block_params(width: int, cross: bool = False) -> dict:
    one = lambda: {name: _normal(width, width) for name in "qkvo"}
    norms = {f"{kind}{i}": np.full(width, i < 0 or kind == "s", "float32") for i in range(3) for kind in "sb"}
    mixed = {"cross": one()} if cross else {}
    return {"own": one(), **mixed, **norms, "up": _normal(width, 4 * width), "down": _normal(4 * width, width)}


def _cross_entropy(ns: SimpleNamespace, logits: Any, labels: Any) -> Any:
    shifted = logits - ns.np.max(logits, axis=-1, keepdims=True)
    logs = shifted - ns.np.log(ns.np.sum(ns.np.exp(shifted), axis=-1, keepdims=True))
    return -ns.np.mean(ns.np.take_along_axis(logs, labels[..., None], axis=-1))


def _transformer(ns: SimpleNamespace, sizes: tuple[int, ...] = (3, 320, 5, 6, 96, 777)) -> tuple[Callable, tuple]:
    layers, width, heads, batch, length, words = sizes
    mask = np.tri(length, dtype=bool)

    def loss(params: Any, tokens: Any) -> Any:
        x = params["table"][tokens] + params["positions"]
        for p in params["blocks"]:
            y = _layer_norm(ns, x, p["s0"], p["b0"])
            x = x + _attend(ns, p["own"], y, y, mask, heads)
            x = x + _gelu(ns, _layer_norm(ns, x, p["s1"], p["b1"]) @ p["up"]) @ p["down"]
        return _cross_entropy(ns, x @ params["table"].T, tokens)

    params = {"table": _normal(words, width), "positions": _normal(length, width)}
    params["blocks"] = [_block_params(width) for _ in range(layers)]
    tokens = RNG.integers(0, words, (batch, length)).astype("int32")
    return ns.value_and_grad(loss), (params, tokens)


def _encoder_decoder(ns: SimpleNamespace) -> tuple[Callable, tuple]:
    width, heads, batch, source, target, words = 128, 4, 8, 40, 33, 500
    causal = np.tri(target, dtype=bool)

    def loss(params: Any, tokens: Any, answer: Any, is_word: Any) -> Any:
        mask = is_word[:, None, None, :]
        x = params["table"][tokens] + params["positions"][:source]
        for p in params["encoder"]:
            y = _layer_norm(ns, x, p["s0"], p["b0"])
            x = x + _attend(ns, p["own"], y, y, mask, heads)
            x = x + _gelu(ns, _layer_norm(ns, x, p["s1"], p["b1"]) @ p["up"]) @ p["down"]
        z = params["table"][answer] + params["positions"][:target]
        for p in params["decoder"]:
            y = _layer_norm(ns, z, p["s0"], p["b0"])
            z = z + _attend(ns, p["own"], y, y, causal, heads)
            z = z + _attend(ns, p["cross"], _layer_norm(ns, z, p["s1"], p["b1"]), x, mask, heads)
            z = z + _gelu(ns, _layer_norm(ns, z, p["s2"], p["b2"]) @ p["up"]) @ p["down"]
        return _cross_entropy(ns, z @ params["table"].T, answer)

    params = {"table": _normal(words, width), "positions": _normal(source, width)}
    params["encoder"] = [_block_params(width) for _ in range(2)]
    params["decoder"] = [_block_params(width, cross=True) for _ in range(2)]
    integers = lambda length: RNG.integers(0, words, (batch, length)).astype("int32")
    is_word = np.arange(source) < RNG.integers(5, source, (batch, 1))
    return ns.value_and_grad(loss), (params, integers(source), integers(target), is_word)


def _beam_search(ns: SimpleNamespace) -> tuple[Callable, tuple]:
    width, words, beams, length = 64, 200, 4, 20

    def search(params: Any, start: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            state, scores, tokens = carry
            state = ns.np.tanh(state @ params["w"] + params["table"][tokens])
            logits = state @ params["table"].T
            logs = logits - ns.np.log(ns.np.sum(ns.np.exp(logits), axis=-1, keepdims=True))
            scores, best = ns.lax.top_k((scores[:, None] + logs).reshape(-1), beams)
            parents, tokens = best // words, best % words
            return (state[parents], scores, tokens), (tokens, parents)

        first = (start, ns.np.zeros(beams), ns.np.zeros(beams, dtype="int32"))
        (_, scores, _), (tokens, parents) = ns.lax.scan(step, first, None, length=length)
        back = lambda beam, pair: (pair[1][beam], pair[0][beam])
        _, found = ns.lax.scan(back, ns.np.arange(beams), (tokens, parents), reverse=True)
        return scores, found

    return search, ({"w": _normal(width, width), "table": _normal(words, width)}, _normal(beams, width))


def _newton(ns: SimpleNamespace) -> tuple[Callable, tuple]:
    def loss(x: Any, a: Any) -> Any:
        return ns.np.sum((a @ x) ** 2) + ns.np.sum(ns.np.exp(x) - x) + 0.1 * ns.np.sum(x**4)

    def solve(x: Any, a: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            return x - ns.np.linalg.solve(ns.hessian(loss)(x, a), ns.grad(loss)(x, a)), loss(x, a)

        return ns.lax.scan(step, x, None, length=10)

    return solve, (_normal(12), _normal(20, 12))


def _neural_ode(ns: SimpleNamespace) -> tuple[Callable, tuple]:
    def loss(params: Any, start: Any, end: Any) -> Any:
        slope = lambda y: _mlp(ns, params, y)

        def step(y: Any, _: Any) -> Any:
            k1 = slope(y)
            k2 = slope(y + 0.05 * k1)
            k3 = slope(y + 0.05 * k2)
            k4 = slope(y + 0.1 * k3)
            return y + (0.1 / 6) * (k1 + 2 * k2 + 2 * k3 + k4), None

        return ns.np.mean((ns.lax.scan(step, start, None, length=20)[0] - end) ** 2)

    return ns.value_and_grad(loss), (_dense(3, 50, 50, 3), _normal(30, 3), _normal(30, 3))


def _hmc(ns: SimpleNamespace) -> tuple[Callable, tuple]:
    def density(w: Any, x: Any, y: Any) -> Any:
        logits = x @ w
        return ns.np.sum(y * logits - ns.np.logaddexp(logits, 0.0)) - 0.5 * ns.np.sum(w * w)

    def chain(key: Any, w: Any, x: Any, y: Any) -> Any:
        slope = ns.grad(density)

        def leapfrog(pair: Any, _: Any) -> Any:
            w, p = pair
            p = p + 0.01 * slope(w, x, y)
            w = w + 0.02 * p
            return (w, p + 0.01 * slope(w, x, y)), None

        def step(w: Any, key: Any) -> Any:
            first, second = ns.random.split(key)
            p = ns.random.normal(first, w.shape)
            (new, q), _ = ns.lax.scan(leapfrog, (w, p), None, length=8)
            change = density(new, x, y) - density(w, x, y) + 0.5 * (ns.np.sum(p * p) - ns.np.sum(q * q))
            w = ns.np.where(ns.np.log(ns.random.uniform(second)) < change, new, w)
            return w, w

        return ns.lax.scan(step, w, ns.random.split(key, 50))[1]

    y = RNG.integers(0, 2, 100).astype("float32")
    return chain, (ns.random.key(0), _normal(7), _normal(100, 7), y)


def _vae(ns: SimpleNamespace) -> tuple[Callable, tuple]:
    def loss(params: Any, key: Any, x: Any) -> Any:
        mean, logs = ns.np.split(_mlp(ns, params["encoder"], x), 2, axis=-1)
        z = mean + ns.np.exp(0.5 * logs) * ns.random.normal(key, mean.shape)
        logits = _mlp(ns, params["decoder"], z)
        likelihood = ns.np.sum(x * logits - ns.np.logaddexp(logits, 0.0), axis=-1)
        divergence = 0.5 * ns.np.sum(ns.np.exp(logs) + mean**2 - 1 - logs, axis=-1)
        return ns.np.mean(divergence - likelihood)

    def step(params: Any, moments: Any, key: Any, x: Any) -> Any:
        value, slopes = ns.value_and_grad(loss)(params, key, x)
        first = ns.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], slopes)
        second = ns.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], slopes)
        update = lambda p, m, v: p - 1e-3 * m / (ns.np.sqrt(v) + 1e-8)
        return ns.map(update, params, first, second), (first, second), value

    params = {"encoder": _dense(784, 200, 40), "decoder": _dense(20, 200, 784)}
    zeros = lambda: {name: [(w * 0, b * 0) for w, b in layers] for name, layers in params.items()}
    x = (RNG.random((64, 784)) < 0.3).astype("float32")
    return step, (params, (zeros(), zeros()), ns.random.key(0), x)


#: Functions of the namespaces that return a function to compile and its arguments, by name.
PROGRAMS = {
    "transformer, by hand": _transformer,
    "encoder-decoder, masked": _encoder_decoder,
    "beam search": _beam_search,
    "Newton, LU and Hessian": _newton,
    "neural ODE": _neural_ode,
    "HMC": _hmc,
    "VAE": _vae,
}
