"""The transformer of "Attention Is All You Need", trained to translate: English number words into German ones.

The default task needs no data: 347,021 is "three hundred and forty-seven thousand and twenty-one" in English and
"dreihundertsiebenundvierzigtausendeinundzwanzig" in German, which swaps tens and ones and writes one word.
``--pairs`` reads pairs of sentences instead. All sentences are padded to one length, so one compiled step serves all.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import corpora
import numpy as np
import training

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import nn, optim, random
from tvmfun.data import ArraySource, Padded, Stream, batches
from tvmfun.loops import evaluate
from tvmfun.metrics import Mean
from tvmfun.models import TransformerConfig, Translator, beam_search

PADDING, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ENGLISH += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
GERMAN = ["null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
GERMAN += ["dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def english(number: int) -> str:
    """Returns the British words of a number below a million.

    >>> english(21_101)
    'twenty-one thousand one hundred and one'
    """
    if number < 20:
        return ENGLISH[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return ENGLISH_TENS[tens - 2] + (f"-{ENGLISH[ones]}" if ones else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, size)
    words = f"{english(many)} {name}"
    if not rest:
        return words
    return f"{words} and {english(rest)}" if rest < 100 else f"{words} {english(rest)}"


def german(number: int, is_last: bool = True) -> str:
    """Returns the German word of a number below a million; a one at its end is *eins*, and *ein* before more.

    >>> german(21_101)
    'einundzwanzigtausendeinhunderteins'
    """
    if number < 20:
        return "eins" if number == 1 and is_last else GERMAN[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (f"{GERMAN[ones]}und" if ones else "") + GERMAN_TENS[tens - 2]
    size, name = (1000, "tausend") if number >= 1000 else (100, "hundert")
    many, rest = divmod(number, size)
    return german(many, False) + name + (german(rest, is_last) if rest else "")


def number_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns pairs of numbers in words: as many of each number of digits, as far as there are so many."""
    rng, chosen = np.random.default_rng(seed), set()
    count = min(count, 1_000_000)
    for digits in range(1, 7):
        low, high = (0 if digits == 1 else 10 ** (digits - 1)), 10**digits
        wanted = min((count - len(chosen)) // (7 - digits), high - low)
        chosen |= set((low + rng.choice(high - low, wanted, replace=False)).tolist())
    return [(english(number), german(number)) for number in sorted(chosen)]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Reads lines of a sentence, a tab and its translation, as Tatoeba and Anki have them; other columns are left out.

    Of a sentence that has several translations, the first one is kept.

    Raises:
        CorpusError: if the file cannot be read, or a line is not a pair.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise corpora.CorpusError(f"{path} cannot be read ({error.strerror}). Name a file of pairs.") from None
    pairs: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            columns = line.decode().split("\t")
        except UnicodeDecodeError as error:
            raise corpora.CorpusError(f"{path}:{number} is not UTF-8 (byte {error.start}). Convert it.") from None
        source, target = (" ".join(column.split()) for column in [*columns, ""][:2])
        if not source or not target:
            raise corpora.CorpusError(
                f"{path}:{number} must have a sentence, a tab and its translation, got {line.decode()!r:.60}. "
                "Correct or remove the line."
            )
        pairs.setdefault(source, target)
    if len(pairs) < 2:
        raise corpora.CorpusError(f"{path} must have at least two pairs, got {len(pairs)}. Name a file of pairs.")
    return list(pairs.items())


class Pieces:
    """Frequent pieces of words, of both languages at once, found by byte-pair encoding.

    A word begins with its space. Reference: Sennrich et al., "Neural Machine Translation of Rare Words with Subword
    Units" (2016).
    """

    def __init__(self, texts: list[str], merges: int) -> None:
        words = Counter(f" {word}" for text in texts for word in text.split())
        characters = sorted(set("".join(words)))
        self.pieces = [*SPECIAL, *dict.fromkeys([*characters, *frequent_pieces(words, merges)])]
        self.index = {piece: i for i, piece in enumerate(self.pieces)}
        # Of several alternatives the first counts: the longest piece.
        pieces = sorted(self.pieces[len(SPECIAL) :], key=len, reverse=True)
        self.pattern = re.compile("|".join([*map(re.escape, pieces), "."]), re.DOTALL)

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text: from the left, the longest piece each time."""
        return [self.index.get(piece, UNKNOWN) for piece in self.pattern.findall(f" {text}")]

    def decode(self, tokens: np.ndarray) -> str:
        """Returns the text of tokens up to the first end."""
        ends = np.flatnonzero(tokens == END)
        tokens = tokens[: ends[0]] if len(ends) else tokens
        return "".join(self.pieces[token] for token in tokens if token != BEGIN).strip()


def frequent_pieces(words: Counter[str], merges: int) -> list[str]:
    """Joins the most frequent pair of neighboring pieces of words, again and again, and returns what was joined."""
    # The most frequent words are enough to find the most frequent pieces.
    sizes = accumulate(len(word) for word, _ in words.most_common())
    known = [(list(word), n) for (word, n), size in zip(words.most_common(), sizes, strict=True) if size <= 100_000]
    counts: Counter[tuple[str, str]] = Counter()
    users: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def count(i: int, sign: int) -> None:
        parts, n = known[i]
        for pair in pairwise(parts):
            counts[pair] += sign * n
            users[pair].add(i)

    for i in range(len(known)):
        count(i, 1)
    joined = []
    while counts and len(joined) < merges:
        best = max(counts, key=lambda pair: (counts[pair], pair))
        if counts[best] < 1:
            break
        for i in sorted(users.pop(best)):
            count(i, -1)
            join(known[i][0], best)
            count(i, 1)
        joined.append("".join(best))
    return joined


def join(parts: list[str], pair: tuple[str, str]) -> None:
    """Joins a pair of neighbors wherever it is in a list."""
    at = 0
    while at < len(parts) - 1:
        if (parts[at], parts[at + 1]) == pair:
            parts[at : at + 2] = ["".join(pair)]
        at += 1


class Sentences(NamedTuple):
    """Pairs of sentences as tokens; targets begin with ``<s>`` and end with ``</s>``."""

    source: Any
    source_lengths: Any
    target: Any


def tokens(pair: tuple[str, str], pieces: Pieces) -> tuple[list[int], list[int]]:
    """Returns the tokens of a pair of sentences."""
    source, target = pair
    return pieces.encode(source), [BEGIN, *pieces.encode(target), END]


def encode(pairs: list[tuple[str, str]], pieces: Pieces, length: int) -> Sentences:
    """Returns the tokens of pairs, padded to a length."""
    sources, targets = zip(*(tokens(pair, pieces) for pair in pairs), strict=True)
    pad = lambda rows: np.array([row + [PADDING] * (length - len(row)) for row in rows], "int32")
    return Sentences(pad(sources), np.array([len(source) for source in sources], "int32"), pad(targets))


class State(NamedTuple):
    """Everything that training changes."""

    model: Translator
    opt_state: Any
    key: Any


def make_schedule(options: argparse.Namespace) -> optim.Schedule:
    """The learning rate of the paper by step: it grows to ``--lr`` and then falls with the root of the step."""

    def rate(count: Any) -> Any:
        step = tnp.asarray(count + 1, "float32")
        return options.lr * tnp.minimum(step / options.warmup, tnp.sqrt(options.warmup / step))

    return rate


def make_optimizer(options: argparse.Namespace) -> optim.GradientTransformation:
    """The paper's Adam."""
    return optim.adam(make_schedule(options), b1=0.9, b2=0.98, eps=1e-9)


def start(config: TransformerConfig, optimizer: optim.GradientTransformation, key: Any) -> State:
    """Returns the state before the first step."""
    model_key, key = random.split(key)
    model = Translator.create(config, model_key)
    return State(model, optimizer.init(model), key)


def losses(model: Translator, batch: Sentences, smoothing: float, key: Any = None) -> tuple[Any, Any]:
    """The loss of each token of the targets, and which are not padding; with a key, elements are dropped.

    With smoothing, a share of each label is spread over all tokens.
    """
    labels = batch.target[:, 1:]
    logits = model(batch.source, batch.target[:, :-1], batch.source_lengths, key=key, train=key is not None)
    logp = nn.log_softmax(logits)
    chosen = tnp.take_along_axis(logp, labels[..., None], axis=-1)[..., 0]
    return -(1 - smoothing) * chosen - smoothing * tnp.mean(logp, axis=-1), labels != PADDING


def train_step(optimizer: Any, smoothing: float, state: State, batch: Sentences) -> tuple[State, Any]:
    """Forward, backward, update and the next random key: the state after one batch, and the loss."""
    dropout_key, key = random.split(state.key)

    def loss(model: Translator) -> Any:
        values, counts = losses(model, batch, smoothing, dropout_key)
        return tnp.sum(values, where=counts) / tnp.sum(counts)

    value, grads = tvmfun.value_and_grad(loss)(state.model)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
    return State(optim.apply_updates(state.model, updates), opt_state, key), value


@tvmfun.jit
def eval_step(model: Translator, batch: Padded) -> Mean:
    """The losses of the tokens of a batch, added up."""
    values, counts = losses(model, batch.examples, 0.0)
    return Mean.init().add(values, where=tnp.logical_and(counts, batch.mask[:, None]))


def translate(model: Translator, sentences: Callable[[], Stream], pieces: Pieces, beams: int) -> list[str]:
    """Returns the best translations that a beam search finds."""
    translations: list[str] = []
    for batch in sentences():
        source, lengths, target = batch.examples
        settings = {"begin_token": BEGIN, "end_token": END, "max_length": target.shape[1], "beams": beams}
        tokens = np.asarray(beam_search(model, source, lengths, **settings).tokens)[batch.mask, 0]
        translations += [pieces.decode(row) for row in tokens]
    return translations


def exact_match(found: list[str], pairs: list[tuple[str, str]]) -> float:
    """Returns the share of translations that are right in every letter."""
    return float(np.mean([text == target for text, (_, target) in zip(found, pairs, strict=True)]))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=training.HelpFormatter)
    training.arguments(parser, steps=600, every=100, directory="runs/translate")
    parser.add_argument("--pairs", type=Path, help="a file of pairs by tabs; without it, numbers in words")
    parser.add_argument("--reverse", action="store_true", help="translate the second language into the first")
    parser.add_argument("--numbers", type=int, default=5_500, help="how many numbers, with the held-out ones")
    parser.add_argument("--held-out", type=int, default=500, help="pairs that are not trained on")
    parser.add_argument("--merges", type=int, default=120, help="pieces of words besides the characters")
    parser.add_argument("--length", type=int, default=32, help="the most tokens of a sentence that is not left out")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="the width of the feed-forward networks")
    parser.add_argument("--layers", type=int, default=2, help="layers of the encoder, and of the decoder")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--smoothing", type=float, default=0.1, help="the share of each label spread over all tokens")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps in which the learning rate grows")
    parser.add_argument("--beams", type=int, default=4, help="the number of beginnings that a search keeps")
    options = parser.parse_args(arguments)
    for name in ("steps", "every", "held_out", "width", "heads", "hidden", "layers", "batch_size", "warmup", "beams"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be positive, got {getattr(options, name)}")
    if not options.lr > 0:
        parser.error(f"--lr must be positive, got {options.lr}")
    for name in ("dropout", "smoothing"):
        if not 0 <= getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 0 and below 1, got {getattr(options, name)}")
    if options.width % options.heads:
        parser.error(f"--heads must divide --width, got {options.heads} and {options.width}")
    if options.numbers < 2:
        parser.error(f"--numbers must be at least 2, got {options.numbers}")
    if options.length < 3 or options.merges < 0:
        parser.error("--length must be at least 3, and --merges at least 0")
    return options


class Prepared(NamedTuple):
    """A task, what it trains on, the held-out pairs, their batches, and the pieces and sizes of the model."""

    task: training.Task
    sentences: Sentences
    pairs: list[tuple[str, str]]
    held_out: Callable[[], Stream]
    pieces: Pieces
    config: TransformerConfig


def prepare(options: argparse.Namespace) -> Prepared:
    """Makes the pairs, the model, the step and the batches of a command line."""
    pairs = read_pairs(options.pairs) if options.pairs else number_pairs(options.numbers, options.seed)
    if options.reverse:
        # A sentence may translate several others: again the first one is kept.
        pairs = list({target: source for source, target in reversed(pairs)}.items())
    order = np.random.default_rng(options.seed).permutation(len(pairs))
    pairs = [pairs[i] for i in order]
    count = min(options.held_out, len(pairs) // 2)
    pieces = Pieces([text for pair in pairs[count:] for text in pair], options.merges)
    sizes = {pair: max(map(len, tokens(pair, pieces))) for pair in pairs}
    held_out, rest = (
        [pair for pair in part if sizes[pair] <= options.length] for part in (pairs[:count], pairs[count:])
    )
    if len(rest) < options.batch_size or not held_out:
        raise SystemExit(
            f"--batch-size {options.batch_size} needs as many pairs of at most --length {options.length} tokens and "
            f"some held out, got {len(rest)} and {len(held_out)}. Try a larger --length, or a smaller --batch-size."
        )
    if options.beams > len(pieces):
        raise SystemExit(f"--beams must be at most {len(pieces)}, the number of pieces, got {options.beams}")
    left_out = len(pairs) - len(held_out) - len(rest)
    print(f"{len(rest):,} pairs to train on, {len(held_out):,} held out, {left_out:,} longer than --length left out")
    length = max(sizes[pair] for pair in held_out + rest)
    widths = options.width, options.heads, options.hidden, options.layers
    config = TransformerConfig(len(pieces), *widths, options.dropout, length)
    key, optimizer = random.key(options.seed), make_optimizer(options)
    sentences, held_out_sentences = (encode(part, pieces, length) for part in (rest, held_out))
    stream = batches(ArraySource(sentences), options.batch_size, key=key, epochs=None)
    state = tvmfun.jit(partial(start, config, optimizer))(key)
    step = tvmfun.jit(partial(train_step, optimizer, options.smoothing), donate_argnums=0)
    labels = held_out_sentences.target[:, 1:]
    baseline = corpora.unigram_entropy(labels[labels != PADDING])

    def held_out_batches() -> Stream:
        return batches(ArraySource(held_out_sentences), min(128, len(held_out)), last="pad")

    def validate(state: State) -> dict[str, float]:
        loss = evaluate(eval_step, state.model, held_out_batches())
        found = translate(state.model, held_out_batches, pieces, options.beams)
        return {"validation loss": loss, "exact match": exact_match(found, held_out), "baseline": baseline}

    task = training.Task(state, step, stream, validate, "pairs", options.batch_size)
    return Prepared(task, sentences, held_out, held_out_batches, pieces, config)


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains as a command line says, and returns the metrics of the held-out pairs."""
    task, sentences, pairs, held_out, pieces, _ = prepare(options)
    training.open_run(options, np.concatenate([sentences.source, sentences.target]))
    training.write(options.run / "vocabulary.json", json.dumps(pieces.pieces, ensure_ascii=False))
    state, metrics = training.train(task, options)
    found = translate(state.model, held_out, pieces, options.beams)
    for (source, target), text in list(zip(pairs, found, strict=True))[:6]:
        print(f"{source}\n  -> {text}" + ("" if text == target else f"\n  should be {target}"))
    greedy = exact_match(translate(state.model, held_out, pieces, 1), pairs)
    print(f"exact match {metrics['exact match']:.1%} with --beams {options.beams}, {greedy:.1%} with one")
    return metrics | {"greedy exact match": greedy}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, prints a line per evaluation and some translations, and returns the metrics.

    Raises:
        SystemExit: if an option makes no sense, or data are missing.
    """
    with training.explained(corpora.CorpusError):
        return train(parse(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
