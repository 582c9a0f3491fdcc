"""Writes `bench/REPORT.md`, its pictures, and the figures of the README and the documentation, of the results that are kept. Pure,
but for the files."""

import json
import re
import tomllib
from pathlib import Path

import aims
import chapters
import gains
import other_systems
import pictures
from pages import Section, day, escaped, moment, table
from results import NOT_MEASURED, Results, brief, measured_at, median, of_commits, quotient, with_spread

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = tomllib.loads((Path(__file__).parent / "chapters.toml").read_text())["chapter"]
EXPERIMENTS = {experiment["name"]: experiment for chapter in CHAPTERS for experiment in chapter["experiments"]}
# The file that each result lies in.
FILES = {of["name"]: chapter["name"] for chapter in CHAPTERS for of in chapter["experiments"]}
RESULTS = "bench/results"
ROUNDS, SECONDS = 5, 0.5

# What the figures can show and what they cannot, each a paragraph.
LIMITS = """\
All of it ran on one virtual machine with two CPUs, over its loopback interface. Both sides of every exchange share \
memory, caches and the kernel; there is no network card, no wire, no switch, no packet that is lost. What it can show \
is what software costs: instructions, system calls, copies, messages and waiting for each other, of systems that do \
the same work in the same minute. What it cannot show is the speed of a cluster.

With many workers on two CPUs, the CPUs are always the limit: total steps a second say how much CPU a step costs, and \
a worker's step takes as long as those of all workers together. On machines of their own, workers would compute while \
others exchange, and a network card, the incast at a ps, or the slowest worker could be the first limit. The chapter \
on computed growth estimates that, with a model.

The published figures beside ours come from other machines, other networks, other models and other versions. They say \
whether an effect is of the same kind and size, not who is faster. DLRM and wide & deep are here the shapes of their \
tensors; nothing is trained but in the training run.

Every figure is the median of its rounds, with the lowest and the highest round in brackets; percentiles are of all \
rounds together. Systems of one command take turns within each round, and quotients are taken round by round, so that \
a machine that slows down slows both. Figures of two commands were measured at different times: compare their \
quotients rather than their figures. A virtual machine's neighbours disturb it: the last table says how busy the \
machine was with other things.

A speed beside the bare loop or gRPC is above 1 where Sealane is faster, of rates and of times alike. Steps a second are those \
of all workers together, a step's time is that of one worker.""".split("\n\n")


def load(place):
    return Results.load(place / RESULTS, FILES)


def words(experiment, quick=False):
    """The words of a command line after the program's name, without the file that the result goes to."""
    if "bench" in experiment:
        given = (1, 0.1) if quick else (experiment.get("rounds", ROUNDS), experiment.get("seconds", SECONDS))
        return ["bench", *experiment["bench"].split(), "--rounds", str(given[0]), "--seconds", f"{given[1]:g}"]
    if "kept" in experiment:
        return experiment["kept"].split()
    if "python" in experiment:
        return experiment["python"].split() + ("--rounds 1 --steps 20 --exchange-steps 50".split() if quick else [])
    if "peers" in experiment:
        return experiment["peers"].split() + ("--rounds 1 --seconds 0.1".split() if quick else [])
    if "torch" in experiment:
        return experiment["torch"].split() + (["--rounds", "1"] if quick else [])
    return experiment["tensorflow"].split() + ("--rounds 1 --seconds 0.1 --steps 20".split() if quick else [])


def command(experiment):
    """The command line, to be run from the workspace's root."""
    if "lab" in experiment:
        return f"cargo xtask rdma-lab --only {experiment['lab']}"
    if "peers" in experiment:
        return "cargo xtask peers"
    return " ".join(["python" if experiment.keys() & {"python", "tensorflow", "torch"} else "sealane", *words(experiment)])


def short(experiment):
    """What tells it from others: the command line without baselines and rounds."""
    if "bench" in experiment:
        return "bench " + experiment["bench"].split(" --baseline")[0]
    return experiment.get("python") or experiment.get("tensorflow") or experiment["kept"].split(" --")[0]


def chapter(of, results):
    runs = {experiment["name"]: results.get(experiment["name"]) for experiment in of["experiments"]}
    # What was run, and where nothing was, what is to be.
    lines = {name: run.provenance["command"] if run.provenance else command(EXPERIMENTS[name]) for name, run in runs.items()}
    section = Section(of["heading"], of["question"], list(lines.values()))
    chapters.ANSWERS[of["name"]](results, section)
    missing = [name for name, run in runs.items() if run.provenance is None]
    others = [name for name, line in lines.items() if line != command(EXPERIMENTS[name])]
    if missing:
        section.notes.append(f"Not measured: {', '.join(missing)}.")
    if others:
        section.notes.append(f"Measured by another command than the report has today: {', '.join(others)}.")
    # What a program of today cannot repeat: a flag or a command that is gone.
    section.notes += [f"Today's program does not have this command: {name} was measured with the program of commit "
                      f"{run.provenance['commit'].strip('+')}, which has it." for name, run in runs.items() if "kept" in EXPERIMENTS[name] and run.provenance]
    section.notes += [f"While {name} was measured: {'; '.join(run.warnings)}." for name, run in runs.items() if run.warnings]
    return section


def in_brief(machine):
    return f"{machine['cpu_model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}"


def days(results):
    return ", ".join(sorted({day(run.provenance["unix_seconds"]) for run in results.runs.values()}))


def summary(results):
    """How much of it there is, and of when."""
    every, there, run = len(EXPERIMENTS), len(results.runs), results.machine_run()
    if run is None:
        return f"None of {every} experiments has been measured yet."
    commits = of_commits({run.provenance["commit"] for run in results.runs.values()})
    of = f"All {every} experiments were" if every == there else f"{there} of {every} experiments were"
    return f"{of} measured on {in_brief(run.report['machine'])}, {days(results)}, at {commits}."


def machine(results):
    run = results.machine_run()
    if run is None:
        return Section("Machine", "Nothing was measured.")
    of, made, section = run.report["machine"], run.provenance, Section("Machine", "")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    section.table(["<what", "<is"], [
        ["CPU", of["cpu_model"]],
        ["CPUs that this process may use", str(of["cpus"])],
        ["CPUs that are pinned to", ", ".join(map(str, of["pinned"])) or "none"],
        ["kernel", f"Linux {of['kernel']}"],
        ["sealane", version],
        ["memory", f"{brief(made['memory_gib'])} GiB"],
        ["congestion control, unless said", made["congestion"]],
        ["compiler", made["compiler"]],
    ])
    return section


def instructions():
    """What `cargo xtask instructions` has counted; no experiment, since it does not depend on the machine's mood."""
    counts = json.loads((ROOT / "tests/snapshots/instructions.json").read_text())
    section = Section("Instructions and system calls a tensor",
                      "Counted by valgrind in one thread, both ends together: a send, its recv and the release of the memory, of 64 B. CI fails "
                      f"where one takes 2% more. Compiled by {counts['compiler']}.", ["cargo xtask instructions"])
    rows = []
    for name, count in counts["drives"].items():
        most = sorted(count["functions"].items(), key=lambda function: -function[1])[:4]
        most = ", ".join(f"{re.sub('<.*', '', function.rsplit('::', 1)[-1])} {cost:.0f}" for function, cost in most)
        rows.append([name, count["about"], f"{count['instructions']:.0f}", f"{count['system_calls']:.2f}", most])
    section.table(["<drive", "<what", "instructions", "system calls", "<most in"], rows)
    return section


def runs(results):
    """Every experiment with what is known of its making."""
    text = ("When each was measured, how long it took, and of which commit it was; a commit with + had changes that were not "
            "committed. Busy is how many processes ran on the machine on average over the minute before, which should be none, or have "
            "less priority than what was measured (behind).")
    section, rows = Section("Runs", text), []
    for name in EXPERIMENTS:
        made = results.get(name).provenance
        rows.append([name, "not measured", "", "", ""] if made is None else [
            name, moment(made["unix_seconds"]), f"{made['took_s']:.0f} s", made["commit"],
            f"{made['load']:.1f}" + (", behind" if made.get("is_first") else "")])
    section.table(["<experiment", "<measured", "took", "<commit", "busy"], rows)
    return section


def report(results):
    """The Markdown of the report, and the pictures by the names of their files: title, subtitle and picture."""
    limits = Section("What these figures can show, and what they cannot", LIMITS[0])
    limits.notes = LIMITS[1:]
    found = {of["name"]: chapter(of, results) for of in CHAPTERS}
    run = results.machine_run()
    subtitle = in_brief(run.report["machine"]) if run else ""
    drawn = {f"{name}.svg": (section.heading, subtitle, section.picture) for name, section in found.items() if section.picture}
    last = max((run.provenance["unix_seconds"] for run in results.runs.values()), default=0)
    text = (f"<!-- Made by `cargo xtask report` from {RESULTS}: measure anew instead of changing it. -->\n"
            f"# The parameter-server experiment, and what Sealane's parts cost\n\n{escaped(summary(results))}\n\n"
            f"```sh\ncargo xtask report\n```\n\nMeasured until {moment(last)}.\n")
    text += limits.markdown("") + aims.section(results).markdown("")
    text += "".join(section.markdown(f"results/{name}.svg") for name, section in found.items())
    return text + instructions().markdown("") + machine(results).markdown("") + runs(results).markdown(""), drawn


# Every figure that a sentence of the documentation may have: its name, the experiment, and what of it. gRPC's figures are those of
# the better of unary calls and one stream, unless a variant is named.
FIGURES = {
    "latency_to_raw": ("latency", "ratio", "sealane/raw", "rtt_us.p50"),
    "secret_latency": ("latency_secret", "ratio_spread", "sealane/open", "rtt_us.p50"),
    "tls_latency": ("latency_tls", "ratio_spread", "sealane/open", "rtt_us.p50"),
    "tls_latency_median": ("latency_tls", "ratio", "sealane/open", "rtt_us.p50"),
    "tls_bandwidth": ("bandwidth_tls", "median", "sealane", "gigabytes_per_s"),
    "tls_bandwidth_ratio": ("bandwidth_tls", "ratio_spread", "sealane/open", "gigabytes_per_s"),
    "restart_gap": ("restart", "median", "sealane, drained and started anew", "gap_ms"),
    "restart_gap_spread": ("restart", "spread", "sealane, drained and started anew", "gap_ms"),
    "restart_peer_gap_spread": ("restart", "spread", "sealane, drained and started anew", "peer_gap_ms"),
    "take_over_gap": ("restart", "median", "sealane, handed over", "gap_ms"),
    "take_over_gap_spread": ("restart", "spread", "sealane, handed over", "gap_ms"),
    "take_over_peer_gap_spread": ("restart", "spread", "sealane, handed over", "peer_gap_ms"),
    "fanin_peer_bytes": ("fanin_plan", "median", "sealane", "rss_bytes_per_peer"),
    "fanin_slowest": ("fanin_plan", "median", "sealane", "slowest_share"),
    "fanin_plan_kept": ("fanin_plan", "ratio_spread", "1000 peers/10 peers", "tensors_per_s"),
    "fanin_sent_kept": ("fanin_sent", "ratio_spread", "1000 peers/10 peers", "tensors_per_s"),
    "idle_cpu": ("idle", "median", "sealane", "cpu_percent"),
    "idle_peer_bytes": ("idle", "median", "sealane", "rss_bytes_per_peer"),
    "idle_client_cpu": ("idle_clients", "median", "sealane", "cpu_percent"),
    "idle_client_bytes": ("idle_clients", "median", "sealane", "rss_bytes_per_peer"),
    "rows_by_grpc": ("rows_tcp", "ratio", "sealane/grpc", "steps_per_s"),
    "latency_shm": ("latency_shm", "median", "sealane", "rtt_us.p50"),
    "connect_all": ("connect", "spread", "sealane", "connect_all_ms"),
    "connect_to_raw": ("connect", "ratio_spread", "sealane/raw", "connect_all_ms"),
}


def figure(results, name):
    experiment, kind, of, metric = FIGURES[name]
    run = results.get(experiment)
    missing = f"({NOT_MEASURED})"
    if kind in ("median", "spread"):
        of, _, variant = of.partition(", ")
        found = run.figure(chapters.grpc(run, variant, metric) if of == "grpc" else of, variant or None, metric)
        return (median if kind == "median" else with_spread)(metric, found) or missing
    found = run.ratio(of, metric)
    return (quotient(found) if kind == "ratio_spread" else found and brief(found.median)) or missing


def systems(results):
    """What a stranger wants to know first."""
    chosen = [(chapters.TENSORS, (0, 1, 2, 3, 4)), (chapters.STEPS, (0, 1, 5, 6)), (chapters.PS, (0, 1)), (chapters.ONE_HOST, (0, 4))]
    rows = []
    for line in (lines[at] for lines, places in chosen for at in places):
        what, *cells = chapters.cells(results, line)
        what = f"one host: {what}" if line.experiment.endswith("_shm") else what
        rows.append([what, *cells, f"`{short(EXPERIMENTS[line.experiment])}`"])
    for what, system in (("DLRM in Python, 4 workers, the exchange alone, by the host's daemon", "sealane"),
                         ("the same by two daemons, with TCP between them", "sealane-tcp")):
        ours, grpc = (with_spread("steps_per_s", chapters.exchange(results, name)) for name in (system, "grpc"))
        by = quotient(chapters.by_grpc(results, system))
        rows.append([what, ours or NOT_MEASURED, "", grpc, "", by, f"`{short(EXPERIMENTS['training'])}`"])
    names = {line.experiment for lines, places in chosen for line in (lines[at] for at in places)} | {"training"}
    where = measured_at([results.get(name) for name in sorted(names)])
    return f"{table([*chapters.SYSTEMS, '<command'], rows)}\n{where or 'Nothing has been measured yet: bench/REPORT.md will tell.'}"


def rows(results):
    """Rows of tables by Sealane and others; nothing until they are measured."""
    section = Section("", "")
    if results.get("rows_tcp").provenance and results.get("rows_shm").provenance:
        chapters.systems(results, section, chapters.ROWS)
        chapters.rows_moved(results, section)
    return "\n".join(section.tables).rstrip()


def verbs(results):
    section = Section("", "")
    chapters.lab(results, section)
    return section.tables[0].rstrip()


def filled(page, text, results):
    """A page with its tables and single figures, each between two marks, made anew; a table of which nothing was measured stays."""
    tables = {"systems": systems, "verbs": verbs, "rows": rows, "other_systems": other_systems.leaders, "in_brief": gains.in_brief}

    def made(kind, name, old):
        if "<!-- " in old:
            raise SystemExit(f"error: {page}: <!-- {kind} {name} has no end")
        if kind == "measured" and name in tables:
            found = tables[name](results)
            return f"\n\n{found}\n\n" if found else old
        if kind == "figure" and name in FIGURES:
            return figure(results, name)
        if kind == "figure" and name in gains.FIGURES:
            return gains.words_of(results, gains.FIGURES[name])[0] or f"({NOT_MEASURED})"
        raise SystemExit(f"error: {page}: nothing is called {name}, as <!-- {kind} {name} says")

    for kind, opened, end in (("measured", ": made by `cargo xtask report` -->", "<!-- end of measured -->"),
                              ("figure", " -->", "<!-- end -->")):
        marked = re.compile(f"(<!-- {kind} )(.*?)({re.escape(opened)})(.*?)({re.escape(end)})", re.DOTALL)
        if text.count(f"<!-- {kind} ") != len(marked.findall(text)):
            raise SystemExit(f"error: {page}: a <!-- {kind} has no end, or no name before {opened!r}")
        text = marked.sub(lambda m: m[1] + m[2] + m[3] + made(kind, m[2], m[4]) + m[5], text)
    return text


def files(place, results):
    """Every text file that follows from the results, and the pictures."""
    text, drawn = report(results)
    texts = {place / "bench/REPORT.md": text}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page, name = path.read_text(), path.relative_to(ROOT)
        if "<!-- figure " in page or "<!-- measured " in page:
            texts[place / name] = filled(name, page, results)
    return texts, drawn


def write(place, results):
    texts, drawn = files(place, results)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for stray in strays(place, drawn):
        stray.unlink()
    pictures.draw(place / RESULTS, drawn)


def strays(place, drawn):
    """Pictures beside the results that the report does not have any more."""
    return [path for path in sorted((place / RESULTS).glob("*.svg")) if path.name not in drawn]


def check(place, results):
    """What is not as the results say."""
    texts, drawn = files(place, results)
    old = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    old += [place / RESULTS / name for name in pictures.old(place / RESULTS, drawn)]
    again = "run `cargo xtask report --render`"
    problems = [f"{path} is not what the results say; {again}" for path in old]
    return problems + [f"{path} belongs to no chapter; {again}" for path in strays(place, drawn)]
