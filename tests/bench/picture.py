"""The picture of the figures: how many times as long as tvmfun's each peer's step takes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

COLORS = {"JAX": "#7a9cc6", "PyTorch": "#d98c5f", "PyTorch, compiled": "#b5563a"}
LEFT, WIDTH, BAR, GAP = 190, 520, 11, 14
# Longer bars end here, with their number.
MOST = 7.0


def svg(rows: Sequence[dict]) -> str:
    """Bars for every case, one per peer; the line is tvmfun."""
    parts, y = [], 34
    for name, color, x in zip(COLORS, COLORS.values(), (LEFT, LEFT + 70, LEFT + 160), strict=True):
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 14}" y="17">{escape(name)}</text>')
    scale = WIDTH / MOST
    for row in rows:
        peers = [name for name in COLORS if name in row["ms"]]
        label = f"{row['case']}, {row['ms']['tvmfun']:.3g} ms"
        middle = y + len(peers) * BAR / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        for name in peers:
            times = row["ms"][name] / row["ms"]["tvmfun"]
            length = min(times, MOST) * scale
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{COLORS[name]}"/>')
            parts.append(f'<text x="{LEFT + length + 4:.1f}" y="{y + BAR - 3}" font-size="10">{times:.2f}</text>')
            y += BAR
        y += GAP
    one = LEFT + scale
    parts.append(
        f'<line x1="{one:.1f}" y1="26" x2="{one:.1f}" y2="{y - GAP + 4}" stroke="#222" stroke-dasharray="3 3"/>'
    )
    parts.append(f'<text x="{one:.1f}" y="{y + 4}" text-anchor="middle">tvmfun = 1</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 50}" height="{y + 14}"'
        ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])
