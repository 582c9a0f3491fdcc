"""Runs experiments one after another, and keeps what each wrote with where it comes from."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import EXPERIMENTS, FILES, RESULTS, ROOT, ROUNDS, SECONDS, command, words

# The Python that has this repository's package.
PYTHON = ROOT / "target/report-python"
# Pythons that are too large to make here, by the kind of experiment that runs them: the folder, and what to install in it.
MADE_BY_HAND = {
    "tensorflow": ("target/report-tensorflow", "pip install 'tensorflow-cpu==2.21.*'` and `pip install ./python ./python/tensorflow"),
    "torch": ("target/report-torch", "pip install 'torch==2.15.*' numpy` and `pip install ./python"),
}
# Files that a report writes itself, which make no other program of it.
WRITTEN = [":!bench/results", ":!bench/REPORT.md", ":!README.md", ":!docs"]
# What a system costs in a round besides the counted seconds, as far as the forecast of the time knows.
ROUND_OVERHEAD_S = 0.3


class Failed(Exception):
    pass


def run(line, **more):
    """Runs a command whose output only matters when it fails, and gives what it printed."""
    try:
        done = subprocess.run(list(map(str, line)), stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    except OSError as problem:
        raise Failed(f"cannot run {line[0]}: {problem.strerror}") from None
    if done.returncode:
        raise Failed(f"{' '.join(map(str, line))} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def python_with(*packages):
    """A Python that has these packages, made once and brought up to date."""
    program = PYTHON / "bin/python"
    if not program.exists():
        run(["python3", "-m", "venv", PYTHON])
    run([program, "-m", "pip", "install", "--quiet", *packages])
    return program


def made_by_hand(experiment):
    """Returns the kind of Python from `MADE_BY_HAND` that the experiment needs, or None."""
    needs = lambda kind, folder: kind in experiment or folder in experiment.get("bench", "")
    return next((kind for kind, (folder, _) in MADE_BY_HAND.items() if needs(kind, folder)), None)


def python_of(kind):
    folder, install = MADE_BY_HAND[kind]
    program = ROOT / folder / "bin/python"
    if not program.exists():
        raise Failed(f"there is no {folder}/bin/python; make it with `python3 -m venv {folder}`, and in it `{install}`")
    return program


def load():
    """Processes that ran or wanted to, on average over the last minute."""
    return float(Path("/proc/loadavg").read_text().split()[0])


def is_first(group):
    """Whether this session goes before others: the kernel shares CPUs out by sessions. It shows nothing of a process without one."""
    words = group.read_text().split() if group.exists() else []
    return bool(words) and int(words[-1]) < 0


def cpu_model():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def facts():
    """What is the same for all experiments of this run."""
    changed = run(["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN], cwd=ROOT)
    commit = run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT).strip() + ("+" if changed else "")
    compiler = " ".join(run([os.environ.get("RUSTC", "rustc"), "--version"]).split()[:2])
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    machine = {"cpu_model": cpu_model(), "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}
    return {"commit": commit, "machine": machine, "compiler": compiler, "congestion": congestion, "is_first": is_first(Path("/proc/self/autogroup")),
            "memory_gib": round(int(memory.split()[1]) / (1 << 20), 1)}


def forecast_s(experiment):
    """About how many seconds it takes, where that can be known."""
    if "bench" not in experiment:
        return None
    line, variants = experiment["bench"].split(), 1
    for word in line:
        variants *= len(word.split(","))
    seconds = experiment.get("seconds", SECONDS) + ROUND_OVERHEAD_S
    return experiment.get("rounds", ROUNDS) * seconds * (variants + line.count("--baseline"))


def keep(folder, name, report, provenance):
    """Writes a result in one piece, so that a run that is interrupted spoils none."""
    if not isinstance(report, dict):
        raise Failed("what it wrote is no object")
    kept, path = {**report, "provenance": provenance}, folder / f"{FILES[name]}.json"
    kept = {**(json.loads(path.read_text()) if path.exists() else {}), name: kept}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    unfinished.rename(path)


def chosen(names, with_lab=False, with_peers=False):
    """Returns the experiments of these names. Without names: all, but those of the lab and those that install other systems only if
    requested, and those of TensorFlow and PyTorch only where these are installed."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise SystemExit(f"error: there is no experiment {unknown[0]!r}; the experiments are {', '.join(EXPERIMENTS)}")
    gone = [name for name in names if "kept" in EXPERIMENTS[name]]
    if gone:
        raise SystemExit(f"error: {gone[0]} cannot be measured anew: what measured it is no longer here")
    if names:
        return [name for name in EXPERIMENTS if name in names]
    is_left_out = {"lab": not with_lab, "peers": not with_peers, "kept": True}
    absent = [kind for kind, (folder, _) in MADE_BY_HAND.items() if not (ROOT / folder / "bin/python").exists()]
    return [name for name, of in EXPERIMENTS.items()
            if made_by_hand(of) not in absent and not any(is_left_out.get(kind) for kind in of)]


def build():
    run_cargo = [os.environ.get("CARGO", "cargo"), "build", "--profile", "dist", "--locked", "-p", "sealane-cli", "-p", "sealane-bench", "--bins"]
    if subprocess.run(run_cargo, cwd=ROOT, check=False).returncode:
        raise SystemExit("error: sealane does not build")
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "dist/sealane"


class Bench:
    """What runs the experiments, and where their results go."""

    def __init__(self, program, folder, quick=False):
        self.program, self.folder, self.quick = program, folder, quick

    def run(self, names, before, made=None):
        """Runs each; one that fails leaves what was kept of it, and the others go on. Gives the problems."""
        self.folder.mkdir(parents=True, exist_ok=True)
        made, problems = made or facts(), []
        here = [name for name in names if "lab" not in EXPERIMENTS[name]]
        for number, name in enumerate(here, 1):
            known = before.get(name).provenance
            about = known["took_s"] if known else forecast_s(EXPERIMENTS[name])
            print(f"experiment {number} of {len(here)}: {name}" + (f", about {about:.0f} s" if about else ""), file=sys.stderr)
            try:
                self.measured([name], made, self.one)
            except Failed as problem:
                problems.append(f"{name} was not measured: {problem}")
                print(problems[-1], file=sys.stderr)
        lab = [name for name in names if "lab" in EXPERIMENTS[name]]
        if lab:
            try:
                self.measured(lab, made, self.lab)
            except Failed as problem:
                problems.append(f"the lab's experiments were not measured: {problem}")
        return problems

    def measured(self, names, made, by):
        busy, begun = load(), time.monotonic()
        for name, report in by(names):
            provenance = {**made, "command": command(EXPERIMENTS[name]), "unix_seconds": int(time.time()),
                          "took_s": time.monotonic() - begun, "load": busy}
            keep(self.folder, name, report, provenance)

    def one(self, names):
        environment = {**os.environ, "SEALANE_BIN": str(self.program)}
        yield names[0], written_by(self.line(EXPERIMENTS[names[0]]), env=environment)

    def line(self, experiment):
        """Returns the command line of an experiment; fails if the Python that the experiment needs does not exist."""
        kind = made_by_hand(experiment)
        by_hand = kind and python_of(kind)
        if "python" in experiment:
            program = python_with(f"{ROOT / 'python'}[examples]")
        elif "peers" in experiment:
            program = python_with("grpcio")
        else:
            program = by_hand if kind in experiment else self.program
        return [program, *words(experiment, self.quick)]

    def lab(self, names):
        """Runs what needs the lab in one boot, since only figures of one boot can be compared."""
        print(f"{len(names)} experiments in the RDMA lab", file=sys.stderr)
        steps = {EXPERIMENTS[name]["lab"]: name for name in names}
        only = [word for step in steps for word in ("--only", step)]
        reports = written_by([os.environ.get("CARGO", "cargo"), "xtask", "rdma-lab", *only])
        for step, name in steps.items():
            yield name, reports[step]


def written_by(line, **how):
    """What a command writes into the file of its option --json, which it may put another in the place of."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        run([*line, "--json", str(file)], cwd=ROOT, **how)
        try:
            return json.loads(file.read_text() if file.exists() else "")
        except ValueError as problem:
            raise Failed(f"what it wrote is no JSON: {problem}") from None
