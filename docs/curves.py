"""Draws the curves of the examples: ``python docs/curves.py [LOG]``, with the output of ``examples/mnist.py``.

The curves are SVG for the pages of the site, whose style sheet has their colors.
"""

import math
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 280, 64, 16, 36, 44


def main(log=None):
    page = (DOCS / "gallery.md").read_text()
    names = {}
    for source in re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        exec(source, names)
    write("sine", chart({"loss": names["sine_losses"]}, "step", "mean squared error"))
    runs = {f"run {i}": losses for i, losses in enumerate(names["ensemble_losses"])}
    write("ensemble", chart(runs, "step", "mean squared error", legend=False))
    write("rosenbrock", chart(names["rosenbrock_losses"], "step", "f(x, y)"))
    if log:
        found = re.findall(r"loss ([\d.]+)  test accuracy ([\d.]+)%", Path(log).read_text())
        series = {"training loss": [float(loss) for loss, _ in found]}
        series["test error"] = [1 - float(accuracy) / 100 for _, accuracy in found]
        write("mnist", chart(series, "epoch", "", first=1))


def write(name, text):
    (DOCS / "_static" / f"{name}.svg").write_text(text)


def chart(series, x_label, y_label, first=0, legend=True):
    """Lines over equally spaced numbers, on a logarithmic axis."""
    series = {name: [float(value) for value in values] for name, values in series.items()}
    values = [value for line in series.values() for value in line if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    low = max(low, high - 8)
    length = max(map(len, series.values()))

    def x(i):
        return LEFT + (WIDTH - LEFT - RIGHT) * i / (length - 1)

    def y(value):
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    label = f"{', '.join(series) if legend else y_label} by {x_label}"
    size = f"0 0 {WIDTH} {HEIGHT}"
    parts = [f'<svg class="curve" viewBox="{size}" role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg">']
    for power in range(low, high + 1, max(1, (high - low) // 4)):
        height = y(10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 5:.1f}" text-anchor="end">{tick(power)}</text>')
    step = max(1, round(length / 6 / 50) * 50 if length > 50 else 2)
    for i in range(0 if first == 0 else step - first, length + (first == 0), step):
        parts.append(f'<text x="{x(min(i, length - 1)):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{i + first}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{x_label}</text>')
    for n, line in enumerate(series.values()):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in thinned(line))
        parts.append(f'<polyline class="c{n % 4}" points="{points}"/>')
    if legend:
        for n, name in enumerate(series):
            start = LEFT + 160 * n
            parts.append(f'<polyline class="c{n % 4}" points="{start},13 {start + 24},13"/>')
            parts.append(f'<text x="{start + 30}" y="18">{name}</text>')
    else:
        parts.append(f'<text x="{LEFT}" y="18">{y_label}, {len(series)} runs</text>')
    return "\n".join([*parts, "</svg>\n"])


def tick(power):
    return f"{10**power:g}" if -3 <= power <= 3 else f"1e{power}"


def thinned(line, most=150):
    """At most about ``most`` points of a line, the first and the last among them."""
    stride = math.ceil(len(line) / most)
    return [(i, value) for i, value in enumerate(line) if i % stride == 0 or i == len(line) - 1]


if __name__ == "__main__":
    main(*sys.argv[1:])
