"""Builds what the package has in Rust: the module `_sealane`, and the program `sealane`, which pip installs next to the interpreter."""

import json
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WORKSPACE = Path(__file__).parent.parent


def run(command, **options):
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout
    except FileNotFoundError:
        raise SystemExit(f"error: there is no {command[0]}; install Rust and a C compiler (docs/install.md)") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"error: {command[0]} ended with {error.returncode}; its messages are above") from None


def build():
    """Returns the files of the module and of the program. One command builds both, so the crates that they share are compiled once."""
    command = [os.environ.get("CARGO", "cargo"), "build", "--locked", "--message-format", "json-render-diagnostics"]
    # `wheels.sh` sets the profile.
    command += ["--profile", os.environ.get("SEALANE_PROFILE", "release")]
    command += ["--package", "sealane-python", "--lib", "--package", "sealane-cli", "--bin", "sealane"]
    # The module has Python's stable ABI. If pyo3 searched for an interpreter, each environment would compile pyo3 again.
    messages = run(command, cwd=WORKSPACE, env=os.environ | {"PYO3_NO_PYTHON": "1"}).splitlines()
    files = [Path(file) for message in messages for file in json.loads(message).get("filenames", [])]
    return [next(file for file in files if file.name == name) for name in ("lib_sealane.so", "sealane")]


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if self.target_name != "wheel" or version == "editable":
            raise SystemExit("error: only wheels are built, in a checkout of Sealane: pip install ./python")
        self.folder = tempfile.TemporaryDirectory(prefix="sealane-python-")
        targets = [("_sealane.abi3.so", "force_include", "sealane/_sealane.abi3.so"), ("sealane", "shared_scripts", "sealane")]
        for built, (name, kind, target) in zip(build(), targets, strict=True):
            stripped = Path(self.folder.name, name)
            run(["strip", "--strip-debug", "-o", stripped, built])
            build_data[kind][str(stripped)] = target
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["pure_python"] = False

    def finalize(self, _version, _build_data, _artifact_path):
        self.folder.cleanup()
