"""Builds the plugin, one shared object: plugin/*.cc for the TensorFlow that is installed, and Sealane's C interface."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
SEALANE = HERE.parent.parent
SUPPORTED = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["sealane"]["tensorflow"]

# Printed last, whatever TensorFlow prints before.
PROBE = """
import json, tensorflow
sysconfig = tensorflow.sysconfig
print(json.dumps([tensorflow.__version__, sysconfig.get_include(), sysconfig.get_lib(), sysconfig.get_compile_flags()]))
"""


class TensorFlow(NamedTuple):
    """The TensorFlow that is installed."""

    version: str
    include: str
    lib: str
    flags: list[str]


def stop(message: str) -> NoReturn:
    """Ends the build; without a traceback, in which nobody would find the message."""
    raise SystemExit(f"error: {message}")


def find_tensorflow() -> TensorFlow:
    """Asks the interpreter that runs pip: here, pip hides what is installed there."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if "pip-build-env-" in environment.get("PYTHONPATH", ""):
        del environment["PYTHONPATH"]
        environment.pop("PYTHONNOUSERSITE", None)
    probe = [sys.executable, "-c", PROBE]
    asked = subprocess.run(probe, env=environment, capture_output=True, text=True, check=False)
    install = f"pip install 'tensorflow-cpu=={SUPPORTED[-1]}.*'"
    if "No module named 'tensorflow'" in asked.stderr:
        stop(
            f"no TensorFlow is installed for {sys.executable}, and the plugin is built for the one that is: "
            f"first run {install} (an installer other than pip may hide it: turn its build isolation off)"
        )
    if asked.returncode != 0:
        stop(f"the TensorFlow of {sys.executable} cannot be imported:\n{asked.stderr}")
    found = TensorFlow(*json.loads(asked.stdout.splitlines()[-1]))
    if found.version.rpartition(".")[0] not in SUPPORTED:
        stop(f"TensorFlow {found.version} is installed, and the plugin supports {', '.join(SUPPORTED)}: run {install}")
    return found


def version() -> str:
    """Sealane's version, and the TensorFlow's that this build is for."""
    manifest = SEALANE / "Cargo.toml"
    if not manifest.is_file():
        stop("the plugin is built in a checkout of Sealane, whose C interface it has: pip install ./python/tensorflow")
    sealane = tomllib.loads(manifest.read_text())["workspace"]["package"]["version"]
    return f"{sealane}+tf{find_tensorflow().version}"


def need(command: list[str], how_to_get: str) -> None:
    """Ends the build where a command's program is not there."""
    if shutil.which(command[0]) is None:
        stop(f"there is no {command[0]}: {how_to_get}")


def compile_plugin(compiler: list[str], tensorflow: TensorFlow, folder: Path) -> list[str]:
    """One object file for each source, as many at a time as there are CPUs for this."""
    # TensorFlow's headers are the system's: their warnings are not for us.
    includes = ["-I", SEALANE / "capi/include"]
    for headers in ("", "external/com_github_grpc_grpc/include", "external/farmhash_archive/src"):
        includes += ["-isystem", Path(tensorflow.include, headers)]
    flags = [flag for flag in tensorflow.flags if not flag.startswith("-I")]
    # Its headers do not have the version, from release 2.20 on.
    flags += [f'-DSEALANE_TENSORFLOW_VERSION="{tensorflow.version}"']
    # What is deprecated in the latest release may be all that the oldest has.
    flags += ["-O2", "-DNDEBUG", "-fPIC", "-Wall", "-Wextra", "-Wno-deprecated-declarations"]
    flags += shlex.split(os.environ.get("CXXFLAGS", ""))

    def compile_one(source: Path) -> str:
        print(f"compiling {source.name}", flush=True)
        made = folder / f"{source.stem}.o"
        run([*compiler, *flags, *includes, "-c", source, "-o", made])
        return str(made)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(compile_one, sorted(HERE.glob("plugin/*.cc"))))


def build_sealane(cargo: list[str]) -> str:
    """The C interface as a static library, without the engine: a server of TensorFlow attaches to a daemon."""
    print("building Sealane's C interface", flush=True)
    chosen = ["--package", "sealane-c", "--lib", "--no-default-features", "--crate-type", "staticlib"]
    # `wheels.sh` asks for the profile of what is packed.
    chosen += ["--profile", os.environ.get("SEALANE_PROFILE", "release")]
    told = run([*cargo, "rustc", *chosen, "--locked", "--message-format", "json-render-diagnostics"])
    made = (name for line in told.splitlines() for name in json.loads(line).get("filenames", []))
    return next(name for name in made if name.endswith("libsealane_c.a"))


def link(compiler: list[str], tensorflow: TensorFlow, objects: list[str], sealane: str, made: Path) -> None:
    # Where TensorFlow lies is not written down: it is loaded before the plugin, and found by its libraries' names.
    # Its framework comes first: some releases have its registries in the other library too, where nobody looks.
    libraries = ["-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2", "-pthread", "-ldl"]
    options = ["--no-undefined", "--gc-sections", "--strip-debug", f"--version-script={HERE / 'exports.map'}"]
    options = [f"-Wl,{option}" for option in options]
    run([*compiler, "-shared", "-o", made, *objects, sealane, "-L", tensorflow.lib, *libraries, *options])


def run(arguments: list[Any]) -> str:
    """What a command printed; it has told its errors itself."""
    done = subprocess.run(arguments, cwd=SEALANE, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        stop(f"{arguments[0]} failed")
    return done.stdout


class CustomBuildHook(BuildHookInterface):
    """Puts the shared object into the wheel, and the version of TensorFlow that it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            stop("of the plugin only wheels are built, in a checkout of Sealane: pip install ./python/tensorflow")
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        need(compiler, "install a compiler for C++, on Debian by apt-get install g++")
        cargo = [os.environ.get("CARGO", "cargo")]
        need(cargo, "install Rust, in which Sealane is written")
        tensorflow = find_tensorflow()
        self.folder = tempfile.TemporaryDirectory(prefix="sealane-tensorflow-")
        folder = Path(self.folder.name)
        library = folder / "libsealane_tensorflow.so"
        built_for = folder / "built_for"
        built_for.write_text(tensorflow.version)
        objects = compile_plugin(compiler, tensorflow, folder)
        link(compiler, tensorflow, objects, build_sealane(cargo), library)
        build_data["force_include"] |= {str(made): f"sealane/tensorflow/{made.name}" for made in (library, built_for)}
        build_data["pure_python"] = False
        # It does not use Python's C interface, so that any Python will do.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        self.folder.cleanup()
