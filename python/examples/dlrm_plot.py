"""Draws what `dlrm_compare.py` reports, as an SVG: losses by step on the left, steps/s on the right."""

import math
from xml.sax.saxutils import escape

COLOURS = ["#0b6fb8", "#5fb3e6", "#d1742f", "#2a9d6f"]
WIDTH, HEIGHT = 920, 360
# Left, top, width and height.
CURVES = (64, 56, 400, 240)
BARS = (552, 56, 344, 240)
# Points of a curve, each the mean of its steps: more would draw the noise of batches.
POINTS = 50
# A grid has about so many lines.
LINES = 5


def picture(report):
    """The SVG's text."""
    how = "synchronous" if report["mode"] == "sync" else "asynchronous"
    workers = "1 worker" if report["workers"] == 1 else f"{report['workers']} workers"
    title = f"A DLRM, 1 parameter server and {workers}, {how}: the same code over each transport"
    names = [system["name"] for system in report["systems"]]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            text(CURVES[0], 22, title, size=15),
            *curves(report),
            *bars(report),
            *legend(names),
            "</svg>\n",
        ]
    )


def curves(report):
    """Each thinner than the one before it, so that equal ones can be seen on top of each other."""
    left, top, width, height = CURVES
    lines = [means(system["losses"]) for system in report["systems"]]
    values = [value for line in lines for _, value in line]
    step = grid_step(max(values) - min(values) or max(values) or 1)
    low, high = min(values) // step * step, -(-max(values) // step) * step
    if high == low:
        high = low + step

    def y(value):
        return top + height * (high - value) / (high - low)

    equal = ", equal to the bit" if report["losses_equal"] else ""
    drawn = [text(left, top - 10, f"loss by step{equal}"), *grid(CURVES, low, high, step, y)]
    last = max(1, report["steps"] - 1)
    for number, line in enumerate(lines):
        points = " ".join(f"{left + width * at / last:.1f},{y(value):.1f}" for at, value in line)
        thickness = 1.5 + 3 * (len(lines) - 1 - number)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour(number)}" stroke-width="{thickness}"/>')
    return [*drawn, text(left, top + height + 18, "0"), text(left + width, top + height + 18, str(report["steps"]), "end")]


def bars(report):
    """Medians, with lines from the least to the most."""
    left, top, width, height = BARS
    groups = [("steps_per_s", exchange(report)), ("training_steps_per_s", "training")]
    most = max(system[of]["max"] for system in report["systems"] for of, _ in groups)
    step = grid_step(most)
    high = -(-most // step) * step

    def y(value):
        return top + height * (1 - value / high)

    drawn = [text(left, top - 10, "steps/s: median, least and most"), *grid(BARS, 0, high, step, y)]
    each = width / (len(report["systems"]) + 0.6) / len(groups)
    for group, (of, label) in enumerate(groups):
        start = left + width * group / len(groups) + 0.3 * each
        middle = start + each * len(report["systems"]) / 2
        drawn.append(text(middle, top + height + 18, label, "middle"))
        for number, system in enumerate(report["systems"]):
            value, x = system[of], start + number * each
            drawn += [
                f'<rect x="{x:.1f}" y="{y(value["median"]):.1f}" width="{each * 0.8:.1f}"'
                f' height="{top + height - y(value["median"]):.1f}" fill="{colour(number)}"/>',
                f'<path d="M{x + each * 0.4:.1f} {y(value["min"]):.1f}V{y(value["max"]):.1f}" stroke="#222"/>',
                text(x + each * 0.4, y(value["max"]) - 5, f"{value['median']:.0f}", "middle"),
            ]
    return drawn


def exchange(report):
    return f"{report['compute_us']} µs of computing" if report["compute_us"] else "nothing computed"


def legend(names):
    drawn = []
    for number, name in enumerate(names):
        x = CURVES[0] + number * 140
        drawn += [f'<rect x="{x}" y="{HEIGHT - 24}" width="12" height="12" fill="{colour(number)}"/>']
        drawn += [text(x + 18, HEIGHT - 14, name)]
    return drawn


def grid(panel, low, high, step, y):
    left, _, width, _ = panel
    drawn = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        drawn.append(f'<path d="M{left} {y(value):.1f}h{width}" stroke="#ddd"/>')
        drawn.append(text(left - 8, y(value) + 4, f"{value:g}", "end"))
    return drawn


def grid_step(extent):
    """The least of 1, 2 and 5, at any scale, that needs at most so many lines."""
    scale = 10.0 ** math.floor(math.log10(extent / LINES))
    return next(scale * factor for factor in (1, 2, 5, 10, 20) if extent <= LINES * scale * factor)


def means(losses):
    """Step and loss, in at most so many points."""
    count = min(POINTS, len(losses))
    edges = [len(losses) * number // count for number in range(count + 1)]
    return [((low + high - 1) / 2, sum(losses[low:high]) / (high - low)) for low, high in zip(edges, edges[1:])]


def text(x, y, said, anchor="start", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#222">{escape(said)}</text>'


def colour(number):
    return COLOURS[number % len(COLOURS)]
