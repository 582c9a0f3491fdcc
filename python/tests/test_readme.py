"""The snippets of README.md, in order, as one program."""

import os
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def test_commands_need_no_variables():
    commands = re.findall(r"^    (?:printf|sealane) .*", README.read_text(), re.MULTILINE)
    assert len(commands) == 2
    # Where a variable is unset, the command would do something else.
    assert not [command for command in commands if "$" in command]


def test_the_snippets_run(own_daemon):
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL))
    assert "sealane.attach" in program
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(own_daemon.directory)}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=own_daemon.directory, check=True)
