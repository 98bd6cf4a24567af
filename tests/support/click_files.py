"""Small files of clicks, in the formats that the example of DLRM reads."""

import movielens_data
import numpy as np


def write_recbole(folder, users=20, films=15, ratings=200):
    """A directory like that of the wheel."""
    rng = np.random.default_rng(0)
    jobs, genres = ("artist", "writer", "none"), ("Action", "Comedy", "Film-Noir")
    lines = [f"{u + 1}\t{20 + u}\t{'MF'[u % 2]}\t{jobs[u % 3]}\t{u}0{u}" for u in range(users)]
    (folder / "ml-100k.user").write_text("\n".join(["header", *lines]) + "\n")
    lines = [f"{f + 1}\tCafé {f}\t{1980 + f if f else 'unkonwn'}\t{genres[f % 3]} Drama" for f in range(films)]
    (folder / "ml-100k.item").write_text("\n".join(["header", *lines]) + "\n", encoding="utf-8")
    lines = []
    for _ in range(ratings):
        user, film = rng.integers(users), rng.integers(films)
        stars = 1 + (user % 2 + film % 2 + rng.integers(0, 2)) * 4 / 3
        lines.append(f"{user + 1}\t{film + 1}\t{round(stars)}\t{881250949 + rng.integers(10**7)}")
    (folder / "ml-100k.inter").write_text("\n".join(["header", *lines]) + "\n")
    return folder


def write_original(folder):
    """The same in the files of the original archive."""
    write_recbole(folder)
    rows = {
        name: (folder / f"ml-100k.{name}").read_text(encoding="utf-8").splitlines()[1:]
        for name in ("user", "item", "inter")
    }
    films = []
    for id, title, year, genres in (row.split("\t") for row in rows["item"]):
        flags = [str(int(genre in genres.split())) for genre in movielens_data.GENRES]
        date = f"01-Jan-{year}" if year.isdigit() else ""
        films.append("|".join([id, title, date, "", "http://", *flags]))
    (folder / "u.user").write_text("\n".join(rows["user"]).replace("\t", "|"))
    (folder / "u.item").write_text("\n".join(films), encoding="latin-1")
    (folder / "u.data").write_text("\n".join(rows["inter"]))
    for name in ("user", "item", "inter"):
        (folder / f"ml-100k.{name}").unlink()
    return folder


ZEROS = ["0"] * 13
TOKENS = ["0000000a"] * 26


def line(label="1", integers=ZEROS, tokens=TOKENS):
    return "\t".join([label, *integers, *tokens])


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def numbered(count, start=0):
    """Lines whose examples differ."""
    return [line(str(i % 2), [str(i), *ZEROS[1:]], [f"{i:x}", *TOKENS[1:]]) for i in range(start, start + count)]
