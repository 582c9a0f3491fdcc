"""The package: what it installs, what it says where it does not fit, and what its build says where something lacks."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent


def python(code, **environment):
    """What a Python of its own prints on either stream, and whether it succeeded."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def tensorflow(tmp_path):
    """Puts a TensorFlow of the given source before the one that is installed; the environment for that."""

    def make(source):
        package = tmp_path / "tensorflow"
        package.mkdir()
        (package / "__init__.py").write_text(source)
        return {"PYTHONPATH": str(tmp_path)}

    return make


MISSING = "raise ModuleNotFoundError(\"No module named 'tensorflow'\", name='tensorflow')"
# As far as the build asks before it compiles.
SUPPORTED = """
__version__ = "2.21.7"
class sysconfig:
    get_include = get_lib = staticmethod(lambda: "/nowhere")
    get_compile_flags = staticmethod(list)
"""


def test_another_tensorflow_is_refused_before_the_library_is_loaded(tensorflow):
    good, said = python("import sealane.tensorflow", **tensorflow("__version__ = '2.0.0'"))
    assert not good
    assert "ImportError: sealane.tensorflow was built for TensorFlow 2." in said
    assert "and this is TensorFlow 2.0.0: run pip install tensorflow-cpu==2." in said
    assert "pip install ./python/tensorflow" in said


def test_without_tensorflow_the_import_says_which_one_to_install(tensorflow):
    good, said = python("import sealane.tensorflow", **tensorflow(MISSING))
    assert not good
    assert "ImportError: sealane.tensorflow needs TensorFlow" in said and "pip install tensorflow-cpu==" in said


def test_a_tensorflow_that_lacks_something_is_not_called_missing(tensorflow):
    good, said = python("import sealane.tensorflow", **tensorflow("import no_such_module"))
    assert not good and "No module named 'no_such_module'" in said.splitlines()[-1]


def test_a_library_that_cannot_be_loaded_is_an_import_error(tensorflow):
    source = """
class errors:
    class OpError(Exception):
        message = "undefined symbol: _ZN10tensorflow"
import pathlib, sealane
built_for = pathlib.Path(sealane.__path__[0], "tensorflow/built_for")
__version__ = built_for.read_text()
def load_library(path):
    raise errors.OpError
"""
    good, said = python("import sealane.tensorflow", **tensorflow(source))
    assert not good and "ImportError: this is TensorFlow" in said and "undefined symbol" in said


def test_the_library_is_loaded_once_and_starts_no_thread():
    good, said = python("""
import os, tensorflow as tf
before = sorted(os.listdir("/proc/self/task"))
import sealane.tensorflow
assert sorted(os.listdir("/proc/self/task")) == before, before
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "sealane_tensorflow" in line}
assert len(mapped) == 1, mapped
assert sealane.tensorflow.report() == {"servers": []}
child = os.fork()
if child == 0:
    os._exit(sealane.tensorflow.report() != {"servers": []})
assert os.waitpid(child, 0)[1] == 0
""")
    assert good, said


@pytest.mark.parametrize("protocol", ["grpc+sealane", "grpc++"])
def test_where_it_is_off_a_server_is_plain_grpc(protocol):
    good, said = python(
        f"""
import tensorflow as tf, sealane.tensorflow
server = tf.distribute.Server({{"worker": ["localhost:0"]}}, protocol={protocol!r})
assert server.target.startswith("grpc://"), server.target
with tf.compat.v1.Session(server.target, graph=tf.Graph()) as session:
    with session.graph.as_default():
        assert session.run(tf.constant(3) + 4) == 7
assert sealane.tensorflow.report() == {{"servers": []}}
""",
        SEALANE_TF="off",
    )
    assert good, said


def test_the_library_is_of_the_version_that_stands_beside_it():
    good, said = python("""
import ctypes, sealane.tensorflow as plugin
version = plugin._plugin.sealane_tensorflow_version
version.restype = ctypes.c_char_p
assert version().decode() == plugin._BUILT_FOR, version()
""")
    assert good, said


def test_the_library_shows_nothing_but_its_own_functions():
    good, said = python("""
import subprocess, sealane.tensorflow as plugin
names = ["nm", "--dynamic", "--defined-only", "--extern-only", plugin._LIBRARY]
said = subprocess.run(names, capture_output=True, text=True, check=True).stdout
shown = {line.split()[-1] for line in said.splitlines()}
assert shown and all(name.startswith("sealane_tensorflow_") for name in shown), shown
""")
    assert good, said


def test_neither_package_has_files_of_the_other():
    ours = {str(path) for path in files("sealane-tensorflow")}
    assert "sealane/tensorflow/__init__.py" in ours
    assert all(path.startswith(("sealane/tensorflow/", "sealane_tensorflow-")) for path in ours), ours
    try:
        theirs = {str(path) for path in files("sealane")}
    except PackageNotFoundError:
        pytest.skip("the package sealane is not installed here")
    assert not any("tensorflow" in path for path in theirs), theirs


def build(**environment):
    good, said = python("import hatchling.build as build; build.build_wheel('/nowhere')", **environment)
    assert not good and said.startswith("error: "), said
    return said


def test_the_build_names_the_tensorflow_to_install_where_there_is_none(tensorflow):
    said = build(**tensorflow(MISSING))
    assert "error: no TensorFlow is installed for" in said and "first run pip install 'tensorflow-cpu==2.21.*'" in said


@pytest.mark.parametrize("version", ["1.15.0", "2.2.0", "2.99.0"])
def test_the_build_refuses_a_tensorflow_that_is_not_supported(tensorflow, version):
    said = build(**tensorflow(SUPPORTED.replace("2.21.7", version)))
    assert f"error: TensorFlow {version} is installed, and the plugin supports 2." in said
    assert "run pip install 'tensorflow-cpu==2.21.*'" in said


def test_the_build_shows_why_a_tensorflow_cannot_be_imported(tensorflow):
    said = build(**tensorflow("import no_such_module"))
    assert "cannot be imported" in said.split("Traceback")[0] and "no_such_module" in said


def test_the_build_says_how_to_get_a_compiler(tensorflow):
    said = build(**tensorflow(SUPPORTED), PATH="/nowhere")
    assert "error: there is no g++: " in said and "apt-get install g++" in said


def test_the_build_says_how_to_get_cargo(tensorflow):
    said = build(**tensorflow(SUPPORTED), PATH="/nowhere", CXX="/bin/true")
    assert "error: there is no cargo: install Rust" in said


def test_only_wheels_are_built(tensorflow):
    environment = tensorflow(SUPPORTED)
    for what in ("build_sdist", "build_editable"):
        good, said = python(f"import hatchling.build as build; build.{what}('/nowhere')", **environment)
        assert not good and "error: of the plugin only wheels are built, in a checkout" in said


def test_the_build_outside_of_a_checkout_says_so(tensorflow, tmp_path):
    alone = tmp_path / "somewhere/python/tensorflow"
    alone.mkdir(parents=True)
    for name in ("hatch_build.py", "pyproject.toml"):
        (alone / name).write_bytes((PROJECT / name).read_bytes())
    code = f"import os; os.chdir({str(alone)!r}); import hatchling.build as build; build.build_wheel('/nowhere')"
    good, said = python(code, **tensorflow(SUPPORTED))
    assert not good and "error: the plugin is built in a checkout of Sealane" in said
