"""Results that are kept, figures found in them by name, and figures as texts."""

import json
import math
import time
from collections import namedtuple
from pathlib import Path

NOT_MEASURED = "not measured"

Spread = namedtuple("Spread", "median min max")


def certain(value):
    return Spread(value, value, value)


def inverse(spread):
    return spread and Spread(1 / spread.median, 1 / spread.max, 1 / spread.min)


def spread_of(row, median):
    """A figure with its lowest and highest round; one that has none of them is certain."""
    if not row or not isinstance(row.get(median), (int, float)):
        return None
    middle = row[median]
    return Spread(middle, *(middle if row.get(end) is None else row[end] for end in ("min", "max")))


class Run:
    """What one experiment found out: what the program wrote and, under `provenance`, who made it, when and where."""

    def __init__(self, report):
        self.report, self.provenance = report, report["provenance"]
        # CPUs and kernel, as the program wrote them, or else the report's own note of them.
        self.machine = report.get("machine") or (self.provenance or {}).get("machine")
        # Why the figures may not be those of the systems.
        self.warnings = report.get("warnings", [])

    def figure(self, system, variant, metric):
        """A figure of a system, of a metric with percentiles one of them (`rtt_us.p50`); without a variant the first."""
        name, _, percentile = metric.partition(".")
        for row in self.report.get("results", []):
            if row["system"] == system and row["metric"] == name and variant in (None, row["variant"]):
                if percentile:
                    return certain(row[percentile]) if percentile in row else None
                return spread_of(row, "value")
        return None

    def systems(self, variant, metric):
        return [row["system"] for row in self.report.get("results", []) if (row["variant"], row["metric"]) == (variant, metric)]

    def best(self, systems, metric, variant=None):
        """That of these systems which has the best figure; the first where none has any."""
        figures = {system: found.median for system in systems if (found := self.figure(system, variant, metric))}
        return (min if is_cost(metric) else max)(figures, key=figures.get, default=systems[0])

    def ratio(self, name, of):
        """A quotient that the program took round by round."""
        found = (row for row in self.report.get("ratios", []) if (row["name"], row["of"]) == (name, of))
        return spread_of(next(found, None), "median")

    def variants(self, system):
        return list(dict.fromkeys(row["variant"] for row in self.report.get("results", []) if row["system"] == system))

    def to_first(self, variant, of):
        """A variant's figure by that of the first variant of Sealane, whichever way round the program took the quotient."""
        first = next(iter(self.variants("sealane")), None)
        if first is None or variant == first:
            return first and certain(1.0)
        direct = self.ratio(f"{variant} / {first}", of) or self.ratio(f"{variant}/{first}", of)
        return direct or inverse(self.ratio(f"{first}/{variant}", of))


def of_commits(commits):
    return f"commit{'' if len(commits) == 1 else 's'} {', '.join(sorted(commits))}"


def measured_at(runs):
    """Returns the lines below figures of these runs: a sentence for each machine, with days and commits. Nothing where none was measured."""
    runs = [run for run in runs if run.provenance]
    # A result that does not name its machine was measured on the machine of the other results of its commit.
    named = {run.provenance["commit"]: run.machine for run in runs if run.machine}
    groups = {}
    for run in runs:
        machine = run.machine or named.get(run.provenance["commit"])
        where = f"on {machine['cpu_model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, " if machine else ""
        groups.setdefault(f"{where}with congestion control {run.provenance['congestion']}", []).append(run.provenance)
    sentences = []
    for where, made in groups.items():
        days = sorted({time.strftime("%Y-%m-%d", time.gmtime(of["unix_seconds"])) for of in made})
        sentences.append(f"Measured {where}; {', '.join(days)}, {of_commits({of['commit'] for of in made})}.")
    return " ".join(sentences)


class Results:
    def __init__(self, runs):
        self.runs = runs

    @staticmethod
    def load(folder, files):
        """Reads a folder, which need not be there. `files` says which file each result is to lie in, by its name. What is no result of an experiment is refused."""
        runs = {}
        for path in sorted(Path(folder).glob("*.json")):
            try:
                kept = json.loads(path.read_text())
            except ValueError as problem:
                raise SystemExit(f"error: {path}: {problem}; measure it anew") from None
            for name, report in kept.items():
                if files.get(name) != path.stem:
                    raise SystemExit(f"error: {path}: {name} is no experiment whose result lies there; delete it")
                if "provenance" not in report:
                    raise SystemExit(f"error: {path}: {name} does not say where it comes from; measure it anew")
                runs[name] = Run(report)
        return Results(dict(sorted(runs.items())))

    def get(self, name):
        return self.runs.get(name, NOTHING)

    def machine_run(self):
        return next((run for run in self.runs.values() if "machine" in run.report), None)


# Stands for every experiment that was not run: it has no figure.
NOTHING = Run({"provenance": None})


def brief(value):
    """A short number with three digits, which are as many as a figure deserves: `1.23 M`, `8.13`, `0.0123`."""
    if value == 0 or not math.isfinite(value):
        return "0"
    scale = 10.0 ** (2 - math.floor(math.log10(abs(value))))
    value = math.copysign(math.floor(abs(value) * scale + 0.5), value) / scale
    for size, prefix, least in ((1e9, " G", 1e9), (1e6, " M", 1e6), (1e3, " k", 1e4)):
        if abs(value) >= least:
            value /= size
            break
    else:
        prefix = ""
    digits = f"{value:.6f}" if abs(value) < 1 else f"{value:.3f}"
    return digits.rstrip("0").rstrip(".") + prefix


def is_cost(metric):
    """Whether less is better."""
    return not ("_per_s" in metric and "_per_step" not in metric or metric.endswith("_share"))


def speed(metric, ratio):
    """How many times as fast something is, from a quotient of two figures of a metric."""
    return inverse(ratio) if is_cost(metric) else ratio


def unit_of(metric):
    name = metric.split(".")[0]
    if name in ("gigabytes_per_s", "cpu_percent"):
        return " GB/s" if name == "gigabytes_per_s" else " %"
    if name in ("rss_bytes_per_peer", "bytes_per_step"):
        return " B"
    ends = (("_us", " µs"), ("_ms", " ms"), ("_ms_per_step", " ms"), ("_mib", " MiB"), ("_per_s", "/s"))
    return next((unit for end, unit in ends if name.endswith(end)), "")


def with_range(text, spread):
    low, high = brief(spread.min), brief(spread.max)
    return text if low == high else f"{text} ({low} to {high})"


def _suited(metric, spread):
    unit = unit_of(metric)
    larger = {" µs": " ms", " ms": " s"}.get(unit)
    return (1000, larger) if larger and spread.median >= 1000 else (1, unit)


def median(metric, spread):
    """A median with its unit: `8.3 µs`, `4.12 M/s`, `14 kB`. Nothing where nothing was measured."""
    if spread is None:
        return ""
    by, unit = _suited(metric, spread)
    text = brief(spread.median / by)
    return text + (unit.lstrip() if text[-1].isalpha() else unit)


def with_spread(metric, spread, missing=""):
    """The same with the lowest and the highest round, in the unit of the median: `8.3 µs (8.1 to 9)`."""
    if spread is None:
        return missing
    by, _ = _suited(metric, spread)
    return with_range(median(metric, spread), Spread(*(value / by for value in spread)))


def quotient(spread, missing=""):
    """`1.21 (1.18 to 1.22)`"""
    return missing if spread is None else with_range(brief(spread.median), spread)
