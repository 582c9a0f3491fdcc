"""The example, in short: it checks its result by itself."""

import pathlib
import subprocess
import sys

import pytest
from daemons import binary

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "dlrm.py"


@pytest.mark.parametrize("options", [[], ["--embedded"], ["--workers", "1"]])
def test_the_example_trains(options, monkeypatch):
    monkeypatch.setenv("SEALANE_BIN", binary())
    command = [sys.executable, EXAMPLE, "--steps", "20", *options]
    output = subprocess.run(command, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    assert "to the bit" in output.stdout
