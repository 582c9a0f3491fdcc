"""The examples, in short: they check their results by themselves."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

import numpy as np
import pytest
from daemons import binary

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def example(monkeypatch, name, *options):
    monkeypatch.setenv("SEALANE_BIN", binary())
    return subprocess.run([sys.executable, EXAMPLES / name, *options], capture_output=True, text=True)


@pytest.mark.parametrize("options", [[], ["--embedded"], ["--workers", "1"]])
def test_the_example_trains(options, monkeypatch):
    output = example(monkeypatch, "dlrm.py", "--steps", "20", *options)
    assert output.returncode == 0, output.stderr
    assert "to the bit" in output.stdout


needs_grpcio = pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="grpcio is not installed")
SYSTEMS = ["sealane", "sealane-tcp", "sealane-embedded", "grpc"]


@needs_grpcio
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_comparison_trains_over_every_transport(mode, monkeypatch, tmp_path):
    options = ["--steps", "12", "--rounds", "1", "--workers", "2", "--mode", mode, "--systems", ",".join(SYSTEMS)]
    options += ["--exchange-steps", "20", "--compute-us", "100"]
    options += ["--json", tmp_path / "train.json", "--plot", tmp_path / "train.svg"]
    output = example(monkeypatch, "dlrm_compare.py", *options)
    assert output.returncode == 0, output.stderr
    report = json.loads((tmp_path / "train.json").read_text())
    assert report["schema"] == "sealane-train/1"
    settings = {"workers": 2, "steps": 12, "exchange_steps": 20, "mode": mode, "compute_us": 100, "rounds": 1}
    assert {key: report[key] for key in settings} == settings
    assert [system["name"] for system in report["systems"]] == SYSTEMS
    for system in report["systems"]:
        assert len(system["losses"]) == 12 and all(0 < loss < 2 for loss in system["losses"])
        assert 0 < system["steps_per_s"]["min"] <= system["steps_per_s"]["median"] <= system["steps_per_s"]["max"]
    if mode == "sync":
        assert report["losses_equal"] and "to the bit" in output.stdout
        first, *others = (system["losses"] for system in report["systems"])
        assert all(losses == first for losses in others)
    ratios = [(ratio["name"], ratio["of"]) for ratio in report["ratios"]]
    assert ratios == [(f"{name}/grpc", of) for of in ("steps_per_s", "training_steps_per_s") for name in SYSTEMS[:-1]]
    drawn = xml.parse(tmp_path / "train.svg").getroot()
    assert len(drawn.findall("{*}polyline")) == len(SYSTEMS)


@needs_grpcio
@pytest.mark.parametrize(
    "options, told",
    [
        (["--systems", "sealane,carrier-pigeon"], "there is no system 'carrier-pigeon': name some of sealane,"),
        (["--rounds", "0"], "needed are a worker, a round and two steps"),
        (["--steps", "1"], "needed are a worker, a round and two steps"),
        (["--exchange-steps", "1"], "needed are a worker, a round and two steps"),
        (["--compute-us", "-1"], "a pause that is not negative"),
    ],
)
def test_a_comparison_that_cannot_be_made(options, told, monkeypatch):
    output = example(monkeypatch, "dlrm_compare.py", *options)
    assert output.returncode == 2 and told in output.stderr


@needs_grpcio
def test_grpc_tells_apart_what_was_asked_for(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import dlrm_grpc

    sent = {"a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "loss": np.float64(0.5), "none": np.zeros((0, 4))}
    received, out = dlrm_grpc.message(7, sent), {"a/kernel": np.zeros((2, 3), np.float32)}
    arrays = dlrm_grpc.arrays(received, 7, list(sent), out)
    assert arrays["a/kernel"] is out["a/kernel"] and arrays["loss"].shape == () and arrays["none"].shape == (0, 4)
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, sent[key])
    for step, keys in [(8, list(sent)), (7, ["loss"])]:
        with pytest.raises(ValueError, match="was asked for, and step 7 of"):
            dlrm_grpc.arrays(received, step, keys, {})
    stream = dlrm_grpc.Stream()
    stream.begin(iter([received]))
    assert dlrm_grpc.Receiving(stream, 7, list(sent), {}).result()["loss"] == 0.5
    with pytest.raises(ConnectionError, match="step 8 has not come"):
        dlrm_grpc.Receiving(stream, 8, list(sent), {}).result()
