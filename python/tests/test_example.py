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


@pytest.mark.parametrize("options", [[], ["--embedded"], ["--workers", "1"], ["--ps", "3", "--rows", "1000"]])
def test_the_example_trains(options, monkeypatch):
    output = example(monkeypatch, "dlrm.py", "--steps", "20", *options)
    assert output.returncode == 0, output.stderr
    assert "those of one process, to the bit" in output.stdout


def test_the_example_trains_with_torch(monkeypatch):
    output = example(monkeypatch, "dlrm_torch.py", "--steps", "20")
    assert output.returncode == 0, output.stderr
    if importlib.util.find_spec("torch") is None:
        assert output.stdout == "skipped: torch is not installed\n"
        pytest.skip(output.stdout)
    assert "those of one process, to the bit" in output.stdout


@pytest.mark.parametrize("options", [["--steps", "0"], ["--ps", "0"], ["--workers", "3", "--batch", "10"]])
def test_a_training_that_cannot_be(options, monkeypatch):
    output = example(monkeypatch, "dlrm.py", *options)
    assert output.returncode == 2 and "needed are a step, a worker," in output.stderr


@pytest.fixture
def modules(monkeypatch):
    """The examples' own modules."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_auc_is_the_share_of_pairs_in_order(modules):
    auc = modules("dlrm_clicks").auc
    # Of six pairs of a click and none, four are in order, one is not, and one is a tie, which counts half.
    scores, clicked = np.array([0.9, 0.4, 0.5, 0.1, 0.4]), np.array([1, 1, 0, 0, 0])
    assert auc(scores, clicked) == pytest.approx(4.5 / 6)
    assert auc(-scores, clicked) == pytest.approx(1.5 / 6)
    assert auc(np.zeros(5), clicked) == 0.5
    random = np.random.default_rng(1)
    scores, clicked = random.integers(0, 50, 400), random.random(400) < 0.3
    pairs = scores[clicked][:, None] - scores[~clicked]
    assert auc(scores, clicked) == pytest.approx(np.mean(np.sign(pairs) / 2 + 0.5))


def test_clicks_have_the_shape_of_criteo(modules):
    clicks = modules("dlrm_clicks")
    rows = clicks.rows_of_tables(max(clicks.CRITEO))
    assert len(rows) == 26 and rows == clicks.CRITEO and sum(rows) == 33762577
    rows = clicks.rows_of_tables(1000)
    features, ids, clicked = next(clicks.Clicks(rows, 1).batches(5000, 0))
    assert features.shape == (5000, 13) and ids.shape == (5000, 26) and set(clicked) == {0, 1}
    ends = np.cumsum(rows)
    assert (ids >= ends - rows).all() and (ids < ends).all()
    # The most popular row of the largest table is about twice as popular as the next one.
    largest = ids[:, 2] - ids[:, 2].min()
    first, second = np.bincount(largest)[:2]
    assert 1.5 < first / second < 3


def test_gradients_are_those_of_the_loss(modules):
    clicks, model = modules("dlrm_clicks"), modules("dlrm_model")
    features, ids, clicked = next(clicks.Clicks(clicks.rows_of_tables(100), 1).batches(8, 0))
    random = np.random.default_rng(2)
    dense, rows = random.standard_normal(model.DENSE) * 0.1, random.standard_normal((*ids.shape, model.WIDTH)) * 0.1
    _, dense_found, rows_found = model.gradients(dense, rows, features, clicked)

    def loss(step):
        return model.gradients(dense + step * dense_direction, rows + step * rows_direction, features, clicked)[0]

    for dense_share, rows_share in [(1, 0), (0, 1), (1, 1)]:
        dense_direction = dense_share * random.standard_normal(dense.shape)
        rows_direction = rows_share * random.standard_normal(rows.shape)
        slope = np.sum(dense_found * dense_direction) + np.sum(rows_found * rows_direction)
        assert (loss(1e-6) - loss(-1e-6)) / 2e-6 == pytest.approx(slope, rel=1e-3)


def needs(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


SYSTEMS = ["sealane", "sealane-tcp", "sealane-embedded", "grpc"]


@needs("grpc")
@needs("matplotlib")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_comparison_trains_over_every_transport(mode, monkeypatch, tmp_path):
    options = ["--steps", "12", "--rounds", "1", "--workers", "2", "--mode", mode, "--systems", ",".join(SYSTEMS)]
    options += ["--exchange-steps", "20", "--compute-us", "100", "--rows", "1000"]
    options += ["--json", tmp_path / "train.json", "--plot", tmp_path / "train.svg"]
    output = example(monkeypatch, "dlrm_compare.py", *options)
    assert output.returncode == 0, output.stderr
    report = json.loads((tmp_path / "train.json").read_text())
    assert report["schema"] == "sealane-train/1"
    settings = {"workers": 2, "steps": 12, "exchange_steps": 20, "mode": mode, "compute_us": 100, "rounds": 1, "rows": 1000}
    assert {key: report[key] for key in settings} == settings
    assert [system["name"] for system in report["systems"]] == SYSTEMS
    for system in report["systems"]:
        assert len(system["losses"]) == 12 and all(0 < loss < 5 for loss in system["losses"])
        assert 0 < system["steps_per_s"]["min"] <= system["steps_per_s"]["median"] <= system["steps_per_s"]["max"]
        first, last = system["auc"]
        assert (first["step"], first["seconds"], last["step"]) == (0, 0, 12) and 0 < last["auc"] < 1 and last["seconds"] > 0
    if mode == "sync":
        assert report["losses_equal"] and "to the bit" in output.stdout
        first, *others = (system["losses"] for system in report["systems"])
        assert all(losses == first for losses in others)
    ratios = [(ratio["name"], ratio["of"]) for ratio in report["ratios"]]
    assert ratios == [(f"{name}/grpc", of) for of in ("steps_per_s", "training_steps_per_s") for name in SYSTEMS[:-1]]
    drawn = " ".join(xml.parse(tmp_path / "train.svg").getroot().itertext())
    assert all(name in drawn for name in SYSTEMS)


@needs("grpc")
@pytest.mark.parametrize(
    "options, told",
    [
        (["--systems", "sealane,carrier-pigeon"], "there is no system 'carrier-pigeon': name some of sealane,"),
        (["--rounds", "0"], "needed are a worker, a round, a row and two steps"),
        (["--steps", "1"], "needed are a worker, a round, a row and two steps"),
        (["--exchange-steps", "1"], "needed are a worker, a round, a row and two steps"),
        (["--compute-us", "-1"], "a pause that is not negative"),
        (["--batch", "9"], "9 examples cannot be shared by 4 workers"),
    ],
)
def test_a_comparison_that_cannot_be_made(options, told, monkeypatch):
    output = example(monkeypatch, "dlrm_compare.py", *options)
    assert output.returncode == 2 and told in output.stderr


def test_adagrad_divides_by_what_a_row_has_learned(modules):
    adagrad, job = modules("dlrm_adagrad"), modules("dlrm_job").Job(1, 2, rows=1, batch=2)
    part = adagrad.Part(job, 0, 1)
    ones = np.ones((1, 16), np.float32)
    dense = np.zeros_like(part.dense)
    pushed = [(np.array([3]), 2 * ones, dense), (np.array([1, 3]), np.concatenate([ones, 4 * ones]), dense + 1)]
    ids, rows, _ = part.learn(pushed)
    # The first step is as long for every row, and the second of the same gradients shorter by the root of 2.
    assert ids.tolist() == [1, 3]
    np.testing.assert_allclose(rows, -adagrad.RATE * np.ones((2, 16)), rtol=1e-6)
    np.testing.assert_allclose(part.row_squares[[1, 3]], [0.25, 9], rtol=1e-6)
    _, rows, dense = part.learn(pushed)
    np.testing.assert_allclose(rows, -adagrad.RATE / np.sqrt(2) * np.ones((2, 16)), rtol=1e-6)
    np.testing.assert_allclose(dense, -adagrad.RATE / np.sqrt(2) * np.ones_like(dense), rtol=1e-6)


@needs("grpc")
def test_messages_over_grpc_arrive_as_they_were(modules):
    dlrm_grpc, model = modules("dlrm_grpc"), modules("dlrm_model")
    random = np.random.default_rng(3)
    wanted, touched = np.array([7, 1 << 31]), np.array([3, 4, 5])
    rows, dense = (random.standard_normal(shape).astype(np.float32) for shape in ((3, model.WIDTH), (1, model.DENSE)))
    ids, learned = dlrm_grpc.requested(dlrm_grpc.request(wanted, (touched, rows, dense)))
    for ours, theirs in zip((ids, *learned), (wanted, touched, rows, dense[0]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    ids, learned = dlrm_grpc.requested(dlrm_grpc.request(wanted))
    assert ids.tolist() == wanted.tolist() and learned is None
    for ours, theirs in zip(dlrm_grpc.replied(dlrm_grpc.reply(rows, dense)), (rows, dense[0]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    ids = np.array([[9, 2], [9, 9]])
    touched, which = dlrm_grpc.Worker.named(None, ids)
    assert touched.tolist() == [2, 9] and which.tolist() == [[1, 0], [1, 1]]
    sums = modules("dlrm_adagrad").summed(2, which, np.arange(4 * model.WIDTH, dtype=np.float32).reshape(2, 2, -1))
    assert sums[:, 0].tolist() == [16, 0 + 32 + 48]
    assert dlrm_grpc.Worker.named(None, np.array([2, 9]))[1] is None
    with pytest.raises(ConnectionError):
        dlrm_grpc.Pulled(iter([]), None).result()
