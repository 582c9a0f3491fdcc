"""Draws what `dlrm_compare.py` reports: AUC over time, and steps/s."""

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

# Told apart without colours being seen, too.
COLOURS = ["#0b62a4", "#5fb3e6", "#3d7f37", "#c2571a"]


def draw(report, path):
    pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 9})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 4), layout="constrained")
    how = "synchronous" if report["mode"] == "sync" else "asynchronous"
    figure.suptitle(f"A DLRM in Python, 1 parameter server, {report['workers']} workers, {report['cpus']} CPUs, {how}")
    groups = {"nothing computed": "steps_per_s", "training": "training_steps_per_s"}
    if report["compute_us"]:
        groups = {f"{report['compute_us']} µs of computing": "steps_per_s", "training": "training_steps_per_s"}
    width = 0.8 / len(report["systems"])
    for number, system in enumerate(report["systems"]):
        style = {"color": COLOURS[number % len(COLOURS)], "label": system["name"]}
        seconds, aucs = zip(*((point["seconds"], point["auc"]) for point in system["auc"]))
        left.plot(seconds, aucs, marker="o", markersize=3, **style)
        rates = [system[of] for of in groups.values()]
        medians = [rate["median"] for rate in rates]
        ends = [[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]]
        places = [group + (number - (len(report["systems"]) - 1) / 2) * width for group in range(len(groups))]
        bars = right.bar(places, medians, width * 0.9, yerr=ends, capsize=3, ecolor="#222222", **style)
        right.bar_label(bars, fmt="%.0f", padding=2)
    equal = ", by step equal to the bit" if report["losses_equal"] else ""
    left.set(title=f"AUC on held-out examples{equal}", xlabel="seconds of training")
    right.set(title="steps/s: median, least and most", xticks=range(len(groups)), xticklabels=groups)
    left.legend(loc="lower right")
    for axes in (left, right):
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    pyplot.close(figure)
