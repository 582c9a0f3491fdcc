"""The examples, in short: over gRPC, and over Sealane where the plugin is installed, to the same losses."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

import numpy as np
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "python" / "tensorflow" / "examples"
STEPS = 25
# So many rows are gathered that they do not fit into a record, and their number differs from step to step.
BATCH = 256
# Nothing here takes so many seconds.
STUCK = 400
# Another test's process may take a port between its choice and its use.
ATTEMPTS = 5


def installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


PROTOCOLS = ["grpc", "grpc+sealane"] if installed("sealane.tensorflow") else ["grpc"]


def run(name, *options):
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    environment = {"SEALANE_BIN": str(target / "debug" / "sealane"), **os.environ}
    command = [sys.executable, EXAMPLES / name, "--steps", str(STEPS), "--batch", str(BATCH), *options]
    for _ in range(ATTEMPTS):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=STUCK)
        if "Could not start gRPC server" not in ran.stderr:
            break
    return ran


@pytest.mark.parametrize(
    "name, options, trainers",
    [
        ("wide_deep.py", ["--workers", "1", "--sync"], 1),
        ("wide_deep.py", ["--workers", "2"], 2),
        ("dlrm.py", ["--workers", "1"], 1),
        ("mirrored.py", ["--workers", "2"], 1),
    ],
)
def test_an_example_trains(name, options, trainers, tmp_path):
    told, drawn = tmp_path / "told.json", tmp_path / "drawn.svg"
    protocol = "both" if len(PROTOCOLS) == 2 else "grpc"
    ran = run(name, *options, "--protocol", protocol, "--json", told, "--plot", drawn)
    assert ran.returncode == 0, ran.stderr
    outcomes = json.loads(told.read_text())
    assert list(outcomes) == PROTOCOLS
    for outcome in outcomes.values():
        assert len(outcome["losses"]) == STEPS and outcome["steps_per_s"] > 0
        assert all(0.1 < loss < 2 for loss in outcome["losses"])
    assert len(xml.parse(drawn).getroot().findall("{*}polyline")) == len(PROTOCOLS)
    if len(PROTOCOLS) == 2:
        assert outcomes["grpc+sealane"]["share"] == 1
        if trainers == 1:
            assert outcomes["grpc+sealane"]["losses"] == outcomes["grpc"]["losses"]
            assert "equal to the bit" in ran.stdout


def test_what_a_task_says_last_is_shown(tmp_path):
    ran = run("wide_deep.py", "--protocol", "grpc", "--data", tmp_path / "missing")
    assert ran.returncode == 1
    assert "ended with 1. The end of its log:" in ran.stderr and "missing; No such file" in ran.stderr


def test_clicks_are_those_of_their_seed_and_read_as_written(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    import criteo

    one, same, other = tmp_path / "one", tmp_path / "same", tmp_path / "other"
    for path, seed in [(one, 1), (same, 1), (other, 2)]:
        criteo.write(path, 5000, seed)
    assert one.read_bytes() == same.read_bytes() != other.read_bytes()
    records = np.fromfile(one, criteo.RECORD)
    for table, rows in enumerate(criteo.ROWS):
        chosen = records["categories"][:, table]
        assert 0 <= chosen.min() and chosen.max() < rows
        # The first of many is the most frequent, and about twice as frequent as the second.
        if rows == criteo.ROWS_MAX:
            first, second, *_ = counts = np.bincount(chosen)
            assert first == counts.max() and 1.3 < first / second < 2.3
    assert 0.1 < records["click"].mean() < 0.5

    # The second of two readers has every second record, and goes on with its first.
    clicks, numbers, categories = next(iter(criteo.read(str(one), 2500, 1, 2).skip(1)))
    np.testing.assert_array_equal(clicks, records["click"][1::2])
    np.testing.assert_array_equal(numbers, records["numbers"][1::2])
    np.testing.assert_array_equal(categories, records["categories"][1::2])
