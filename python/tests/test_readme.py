"""The examples of the pages: some run, in order, as one program; in all of them, names are defined before they are used."""

import ast
import builtins
import os
import re
import subprocess
import sys
import textwrap

import pytest
from daemons import REPOSITORY

PAGES = sorted(
    str(path.relative_to(REPOSITORY))
    for pattern in ("README.md", "docs/*.md", "python/README.md", "python/tensorflow/README.md")
    for path in REPOSITORY.glob(pattern)
    if "```python\n" in path.read_text()
)


def test_commands_need_no_variables():
    commands = re.findall(r"^    (?:printf|sealane) .*", (REPOSITORY / "python/README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    # Where a variable is unset, the command would do something else.
    assert not [command for command in commands if "$" in command]


def program(page):
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", (REPOSITORY / page).read_text(), re.MULTILINE | re.DOTALL)
    return "\n".join(map(textwrap.dedent, blocks))


@pytest.mark.parametrize("page", ["python/README.md", "docs/tables.md"])
def test_the_examples_run(own_daemon, page):
    assert "sealane.attach" in program(page)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(own_daemon.directory)}
    subprocess.run([sys.executable, "-c", program(page)], env=environment, cwd=own_daemon.directory, check=True)


def undefined(program):
    """The names that a program uses and has not defined before, or in the same statement; functions may use later ones."""
    known, missing, later = set(dir(builtins)), [], []
    for statement in ast.parse(program).body:
        used = []
        for node in ast.walk(statement):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    used.append(name)
                case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    known.add(name)
                case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                    known.add(name)
                case ast.alias(name=module, asname=name):
                    known.add(name or module.partition(".")[0])
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            later += used
        else:
            missing += [name for name in used if name not in known]
    return missing + [name for name in later if name not in known]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_define_what_they_use(page):
    assert undefined(program(page)) == []


def test_a_name_is_missed_before_it_is_defined():
    example = "import a.b\nuse(a, early)\nearly = [other for other in a]\ndef call(given):\n    return given, early, late\n"
    assert undefined(example) == ["use", "early", "late"]
