"""Selects the steps of `.ci/run` that a change needs.

    git diff --name-only BASE | python3 .ci/steps.py STEP...

Prints the selected steps in the given order, and reports on stderr each step that it skips. Tested by its examples:
`python3 -m doctest .ci/steps.py`.

>>> select(["lab", "tensorflow"], ["transport/src/verbs/link/outgoing.rs"])
['lab']
>>> select(["cleanroom", "tests", "packages"], ["bench/README.md", "bench/src/lib.rs"])
['tests']
>>> select(["cleanroom", "tests", "packages"], ["README.md"])
['cleanroom', 'tests']
>>> select(["abi", "packages", "pytorch", "tensorflow"], ["Cargo.lock"])
['abi', 'packages', 'pytorch', 'tensorflow']
>>> select(["cleanroom", "tests"], [".ci/checked"])
['tests']
>>> select(["pytorch", "tensorflow"], ["client/src/group/reduce.rs"])
['pytorch']
>>> select(["tensorflow", "two_hosts"], ["docs/tensorflow_two_hosts.md"])
['two_hosts']
>>> select(["tests", "dashboard"], ["deploy/grafana/sealane.json"])
['tests', 'dashboard']
>>> [step for step in PATHS if step not in select(PATHS, [".ci/run"])]
[]

A changed file triggers a step if it matches one of the patterns of the step, in which `*` also matches `/`:

>>> [pattern for patterns in PATHS.values() for pattern in patterns if not matches(tracked(), pattern)]
[]
"""

import fnmatch
import subprocess
import sys

# Any step may depend on these.
EVERYTHING = ("Cargo.lock", "Cargo.toml", ".ci/cleanroom", ".ci/package", ".ci/run", ".ci/steps.py")

# The steps that only a change of these paths can break. All other steps run for every change.
PATHS = {
    "cleanroom": ("README.md", "*/Cargo.toml", "*/pyproject.toml", "deploy/debian/*", "*/build.rs"),
    "without_io_uring": ("runtime/*", "fusion/src/engine/*", "bin/src/commands/daemon/*", "xtask/src/without_io_uring.rs"),
    "packages": ("deploy/*", "capi/*", "bin/src/cli.rs", "*/Cargo.toml", "xtask/src/package.rs"),
    "dashboard": (".ci/dashboard", "deploy/grafana/*", "bin/src/commands/daemon/metrics/*", "bin/src/figures/*", "fusion/src/metrics/*"),
    "lab": ("transport/src/verbs/*", "transport/src/link.rs", "transport/src/session/*", "transport/src/transfers.rs",
            "transport/tests/*", "fusion/src/engine/links.rs", "xtask/src/rdma_lab*"),
    "abi": ("transport/src/verbs/ibverbs/*", "tests/abi/*"),
    "pytorch": ("python/torch/*", "python/package/*", "python/src/*", "client/src/group/*", "transport/src/shm/group/*"),
    "tensorflow": ("python/tensorflow/*", "capi/src/*", "capi/include/*", "client/src/attachment/*"),
    "two_hosts": (".ci/two_hosts", "docs/*_two_hosts.md", "bin/src/*", "python/hatch_build.py", "python/pyproject.toml", "python/package/*",
                  "python/tensorflow/hatch_build.py", "python/tensorflow/package/*", "python/tensorflow/plugin/*"),
}


def matches(files, pattern):
    return fnmatch.filter(files, pattern)


def tracked():
    return subprocess.run(["git", "ls-files"], capture_output=True, check=True, text=True).stdout.splitlines()


def cause(step, changed):
    """Returns the first changed file that the step depends on, or None."""
    return next((file for pattern in EVERYTHING + PATHS[step] for file in matches(changed, pattern)), None)


def select(steps, changed):
    """Returns the steps that a change of these files needs; `steps` in their order, without the skipped ones."""
    return [step for step in steps if step not in PATHS or cause(step, changed)]


if __name__ == "__main__":
    changed = sys.stdin.read().splitlines()
    selected = select(sys.argv[1:], changed)
    for step in sys.argv[1:]:
        if step not in selected:
            print(f"skipped {step}: no change in {' '.join(PATHS[step])}", file=sys.stderr)
    print(*selected)
