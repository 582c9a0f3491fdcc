"""Draws the pictures of the report with matplotlib. Each names the digest of what it was drawn from, so that an old one is
seen where matplotlib is not."""

import hashlib
import json

# Told apart without colours being seen, and on white as on grey.
COLOURS = ["#0b62a4", "#c2571a", "#3d7f37", "#7a4b9d", "#8a6d1d", "#4a5560"]


def digest(drawn):
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:16]


def old(folder, pictures):
    """The names of those that are not there, or were drawn from other figures."""
    def is_old(name, drawn):
        path = folder / name
        return not path.exists() or f"drawn from {digest(drawn)}" not in path.read_text()

    return [name for name, drawn in pictures.items() if is_old(name, drawn)]


def draw(folder, pictures):
    """Draws those that are old."""
    for name in old(folder, pictures):
        title, subtitle, picture = pictures[name]
        _draw(folder / name, title, subtitle, picture, digest(pictures[name]))


def _draw(path, title, subtitle, picture, made_from):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "sealane", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"})
    rows = picture.get("rows", [])
    figure, axes = pyplot.subplots(figsize=(9.6, 1.6 + 0.42 * len(rows) if rows else 4.8), layout="constrained")
    figure.suptitle(f"{title}\n", fontweight="bold")
    axes.set_title(subtitle, fontsize=8)
    (_curves if picture["kind"] == "curves" else _rows)(axes, picture)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None, "Description": f"drawn from {made_from}"})
    pyplot.close(figure)


def _rows(axes, picture):
    """Bars, or points beside the line of 1, each with a whisker from the lowest round to the highest."""
    from matplotlib.ticker import FuncFormatter
    from results import brief, with_range, Spread

    rows = [(name, Spread(*spread)) for name, spread in picture["rows"]]
    places = range(len(rows))
    middles = [spread.median for _, spread in rows]
    ends = [[s.median - s.min for _, s in rows], [s.max - s.median for _, s in rows]]
    if picture["kind"] == "bars":
        axes.barh(places, middles, height=0.5, color=COLOURS[0])
        axes.errorbar(middles, places, xerr=ends, fmt="none", ecolor="#222222", capsize=3)
    else:
        axes.errorbar(middles, places, xerr=ends, fmt="o", color=COLOURS[0], ecolor="#222222", capsize=3)
        axes.axvline(1, color="#222222", linewidth=0.8)
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))
    axes.set_yticks(places, [f"{name}: {with_range(brief(spread.median), spread)}" for name, spread in rows])
    axes.invert_yaxis()
    axes.set_xlabel(picture["label"])


def _curves(axes, picture):
    from matplotlib.ticker import FuncFormatter
    from results import brief

    for at, (name, points, is_dashed) in enumerate(picture["lines"]):
        style = {"linestyle": "--" if is_dashed else "-", "marker": "o" if len(points) <= 30 else None, "markersize": 4}
        axes.plot(*zip(*points), label=name, color=COLOURS[at % len(COLOURS)], **style)
    values = [[point[at] for _, points, _ in picture["lines"] for point in points if point[at] > 0] for at in (0, 1)]
    for axis, of, scale, label in ((axes.xaxis, values[0], axes.set_xscale, picture["across"]),
                                   (axes.yaxis, values[1], axes.set_yscale, picture["label"])):
        # What lies far apart is not to be squeezed into a corner.
        is_far = of and max(of) > 30 * min(of) and (axis is axes.yaxis or min(of) >= 10)
        if is_far:
            scale("log")
        axis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))
        axis.set_label_text(f"{label} (logarithmic)" if is_far else label)
    axes.legend(frameon=False)
