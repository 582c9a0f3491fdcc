"""The README's two-process example, and the guide's parameter server in Rust: two processes and one daemon."""

import os
import pathlib
import subprocess
import sys

import pytest

from daemons import REPOSITORY, STUCK, Daemon

EXAMPLES = REPOSITORY / "python" / "examples"


def in_rust():
    """The parameter server in Rust, built if it is missing."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    path = target / "debug" / "examples" / "quick_start"
    if not path.exists():
        command = ["cargo", "build", "--locked", "--package", "sealane", "--example", "quick_start"]
        subprocess.run(command, cwd=REPOSITORY, check=True)
    return [str(path)]


def in_python():
    return [sys.executable, EXAMPLES / "quick_start_ps.py"]


@pytest.mark.parametrize(
    ("program", "gradient"),
    [(in_python, "gradient [[0.5, 1.0], [1.5, 2.0]]\n"), (in_rust, "gradient [2, 2] = [0.5, 1.0, 1.5, 2.0]\n")],
)
def test_the_quick_start(tmp_path_factory, monkeypatch, program, gradient):
    # A socket's path must be short.
    directory = tmp_path_factory.mktemp("q")
    daemon = Daemon(directory, tasks=("ps0:2222", "worker0:2222"))
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
        start = {"stdout": subprocess.PIPE, "text": True}
        ps = subprocess.Popen(program(), **start)
        worker = subprocess.Popen([sys.executable, EXAMPLES / "quick_start.py"], **start)
        assert worker.communicate(timeout=STUCK)[0] == "weights [[1.0, 2.0], [3.0, 4.0]]\n"
        assert ps.communicate(timeout=STUCK)[0] == gradient
        assert (ps.returncode, worker.returncode) == (0, 0)
    finally:
        daemon.kill()
