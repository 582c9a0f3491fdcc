"""What the bench makes of its rounds; the steps themselves are measured by `cargo xtask report`."""

import argparse
import importlib.util
import math
import pathlib

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench" / "steps.py"


def bench():
    spec = importlib.util.spec_from_file_location("steps", BENCH)
    steps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(steps)
    return steps


def test_medians_and_ratios_are_of_the_rounds():
    steps = bench()
    took = [(40, 10, 20), (50, 10, 25), (90, 30, 10)]
    rounds = [{system: {"pull_ms": of} for system, of in zip(steps.SYSTEMS, each)} for each in took]
    told = steps.report(rounds, [1, 0.9], argparse.Namespace(rounds=3, seconds=1.0, steps=2))
    assert [(row["system"], row["metric"], row["value"], row["min"], row["max"]) for row in told["results"]] == [
        ("grpc", "pull_ms", 50, 40, 90),
        ("sealane", "pull_ms", 10, 10, 30),
        ("sealane-tcp", "pull_ms", 20, 10, 25),
    ]
    # Each of its own round: not the quotient of medians.
    of = {ratio["name"]: (ratio["median"], ratio["min"], ratio["max"]) for ratio in told["ratios"]}
    assert of == {"sealane/grpc": (0.25, 0.2, 30 / 90), "sealane-tcp/grpc": (0.5, 10 / 90, 0.5)}
    assert told["least_share"] == 0.9


def test_the_shapes_of_resnet_50_are_whole():
    assert sum(map(math.prod, bench().resnet50())) == 25_557_032
