"""The DLRM of `dlrm.py` over Sealane and over gRPC: the same code of parameter server and workers, side by side.

    pip install './python[examples]'
    python dlrm_compare.py --json train.json --plot train.svg

Each round runs every system in turn, twice: training, and the exchange alone, where the same bytes travel and nothing
is computed for them (or a worker pauses for so many microseconds: `--compute-us`). A run's first tenth is not timed.
Synchronous training gives the same losses over each system as in one process, to the bit, which is checked.

    sealane             one daemon: all tasks are on this host
    sealane-tcp         two daemons and TCP between them, as if the parameter server were on another host
    sealane-embedded    an engine in each process, and TCP between them
    grpc                streams of grpcio over TCP: see `dlrm_grpc.py`
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

import dlrm_job as job
import dlrm_plot
import dlrm_processes as processes

SYSTEMS = {
    "sealane": processes.one_daemon,
    "sealane-tcp": processes.two_daemons,
    "sealane-embedded": processes.engines,
    "grpc": processes.grpc_streams,
}
BASELINE = "grpc"
# What is measured: with nothing computed, and in training.
RATES = ("steps_per_s", "training_steps_per_s")


def rate(ended):
    """Steps in a second, by when each ended."""
    first = len(ended) // 10
    return (len(ended) - 1 - first) / (ended[-1] - ended[first])


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(options, tell):
    """The report, as it is written with `--json`."""
    synchronous = options.mode == "sync"
    rates = {name: {of: [] for of in RATES} for name in options.systems}
    losses = {name: [] for name in options.systems}
    for number in range(options.rounds):
        for name in options.systems:
            reach, idle = SYSTEMS[name], options.compute_us / 1e6
            _, ended, *_ = processes.train(reach, options.exchange_steps, options.workers, synchronous, idle)
            rates[name]["steps_per_s"].append(rate(ended))
            trained, ended, *_ = processes.train(reach, options.steps, options.workers, synchronous)
            rates[name]["training_steps_per_s"].append(rate(ended))
            losses[name].append(trained)
            tell(number, name, *(rates[name][of][-1] for of in RATES))
    expected, *_ = job.alone(options.steps, options.workers)
    ratios = []
    for of in RATES:
        for name in options.systems if BASELINE in options.systems else []:
            if name != BASELINE:
                # Round by round: what slows the machine down for a while slows down both.
                by_round = [ours / theirs for ours, theirs in zip(rates[name][of], rates[BASELINE][of])]
                ratios.append({"name": f"{name}/{BASELINE}", "of": of, **spread(by_round)})
    return {
        "schema": "sealane-train/1",
        "workers": options.workers,
        "steps": options.steps,
        "exchange_steps": options.exchange_steps,
        "mode": options.mode,
        "compute_us": options.compute_us,
        "rounds": options.rounds,
        "cpus": len(os.sched_getaffinity(0)),
        "systems": [
            {"name": name, **{of: spread(rates[name][of]) for of in RATES}, "losses": losses[name][-1]}
            for name in options.systems
        ],
        "ratios": ratios,
        "losses_equal": all(each == expected for name in options.systems for each in losses[name]),
    }


def cell(rates):
    return f"{rates['median']:10.0f} ({rates['min']:6.0f} - {rates['max']:6.0f})"


def table(report):
    lines = [f"{'':18}{'exchange, steps/s':>28}{'training, steps/s':>28}{'last loss':>12}"]
    for system in report["systems"]:
        last = statistics.mean(system["losses"][-max(1, report["steps"] // 10) :])
        lines.append(f"{system['name']:18}{''.join(cell(system[of]) for of in RATES)}{last:12.4f}")
    for ratio in report["ratios"]:
        what = "exchange" if ratio["of"] == "steps_per_s" else "training"
        lines.append(f"{ratio['name']}, {what}: {ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})")
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500, help="of each training")
    parser.add_argument("--exchange-steps", type=int, default=5000, metavar="N", help="of each exchange alone: 5000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync", help="sync unless given")
    parser.add_argument("--compute-us", type=int, default=0, metavar="N", help="computing in it, a pause: 0")
    parser.add_argument("--systems", default="sealane,sealane-tcp,grpc", help=f"some of {', '.join(SYSTEMS)}")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the report")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.svg", help="draw losses and steps/s")
    options = parser.parse_args()
    options.systems = options.systems.split(",")
    steps = min(options.steps, options.exchange_steps)
    if min(options.workers, options.rounds) < 1 or steps < 2 or options.compute_us < 0:
        parser.error("needed are a worker, a round and two steps, and a pause that is not negative")
    if unknown := [name for name in options.systems if name not in SYSTEMS]:
        parser.error(f"there is no system {unknown[0]!r}: name some of {', '.join(SYSTEMS)}")
    return options


def main():
    options = arguments()

    def tell(number, name, exchange, training):
        print(f"round {number + 1}: {name} {exchange:.0f} steps/s, training {training:.0f}", file=sys.stderr)

    report = measure(options, tell)
    print(f"1 parameter server, {options.workers} workers, {options.steps} steps, {options.mode}, {report['cpus']} CPUs")
    print(table(report))
    if options.json:
        options.json.write_text(json.dumps(report) + "\n")
    if options.plot:
        options.plot.write_text(dlrm_plot.picture(report))
    if report["losses_equal"]:
        print("all losses are those of one process, to the bit")
    elif options.mode == "sync":
        sys.exit("the losses are not those of one process")


if __name__ == "__main__":
    main()
