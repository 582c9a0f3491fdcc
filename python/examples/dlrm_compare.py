"""The DLRM of `dlrm.py` over Sealane and over gRPC: the same model, optimizer and processes, side by side.

    pip install './python[examples]'
    python dlrm_compare.py --json train.json --plot train.svg

Each round runs every system in turn, twice: training, and the exchange alone, where the rows of the first step travel again
and again and nothing is computed (or a worker pauses for so many microseconds: `--compute-us`). A run's first tenth is not
timed. Synchronous training gives the same losses and AUC over each system as in one process, to the bit, which is checked;
asynchronously, a worker goes on when its own gradients are learned.

    sealane             one daemon: all tasks are on this host
    sealane-tcp         two daemons and TCP between them, as if the parameter server were on another host
    sealane-embedded    an engine in each process, and TCP between them
    grpc                streams of grpcio over TCP: see `dlrm_grpc.py`
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys

import dlrm_processes as processes
from dlrm_job import Job, alone

SYSTEMS = {
    "sealane": processes.one_daemon,
    "sealane-tcp": processes.two_daemons,
    "sealane-embedded": processes.engines,
    "grpc": processes.grpc_streams,
}
BASELINE = "grpc"
# What is measured: with nothing computed, and in training.
RATES = ("steps_per_s", "training_steps_per_s")


def rate(moments):
    """Steps in a second, by when each ended."""
    first = len(moments) // 10
    return (len(moments) - 1 - first) / (moments[-1] - moments[first])


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(options, tell):
    """The report, as it is written with `--json`."""
    synchronous = options.mode == "sync"
    job = Job(options.steps, options.workers, rows=options.rows, batch=options.batch, synchronous=synchronous)
    exchange = dataclasses.replace(job, steps=options.exchange_steps, idle=options.compute_us / 1e6)
    rates = {name: {of: [] for of in RATES} for name in options.systems}
    trained = {name: [] for name in options.systems}
    for number in range(options.rounds):
        for name in options.systems:
            rates[name]["steps_per_s"].append(rate(processes.train(SYSTEMS[name], exchange).moments))
            trained[name].append(processes.train(SYSTEMS[name], job))
            rates[name]["training_steps_per_s"].append(rate(trained[name][-1].moments))
            tell(number, name, *(rates[name][of][-1] for of in RATES))
    expected = alone(job)
    ratios = []
    for of in RATES:
        for name in options.systems if BASELINE in options.systems else []:
            if name != BASELINE:
                # Round by round: what slows the machine down for a while slows down both.
                by_round = [ours / theirs for ours, theirs in zip(rates[name][of], rates[BASELINE][of])]
                ratios.append({"name": f"{name}/{BASELINE}", "of": of, **spread(by_round)})
    settings = ("workers", "steps", "exchange_steps", "rows", "batch", "mode", "compute_us", "rounds")
    return {
        "schema": "sealane-train/1",
        **{name: getattr(options, name) for name in settings},
        "cpus": len(os.sched_getaffinity(0)),
        "systems": [
            {
                "name": name,
                **{of: spread(rates[name][of]) for of in RATES},
                "losses": trained[name][-1].losses,
                "auc": [{"step": step, "seconds": seconds, "auc": auc} for step, seconds, auc in trained[name][-1].aucs],
            }
            for name in options.systems
        ],
        "ratios": ratios,
        "losses_equal": all(each.result == expected for name in options.systems for each in trained[name]),
    }


def cell(rates):
    return f"{rates['median']:10.0f} ({rates['min']:6.0f} - {rates['max']:6.0f})"


def table(report):
    lines = [f"{'':18}{'exchange, steps/s':>28}{'training, steps/s':>28}{'last loss':>12}{'AUC':>9}"]
    for system in report["systems"]:
        last = statistics.mean(system["losses"][-max(1, report["steps"] // 10) :])
        rates = "".join(cell(system[of]) for of in RATES)
        lines.append(f"{system['name']:18}{rates}{last:12.4f}{system['auc'][-1]['auc']:9.4f}")
    for ratio in report["ratios"]:
        what = "exchange" if ratio["of"] == "steps_per_s" else "training"
        lines.append(f"{ratio['name']}, {what}: {ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})")
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500, help="of each training")
    parser.add_argument("--exchange-steps", type=int, default=5000, metavar="N", help="of each exchange alone: 5000")
    parser.add_argument("--rows", type=int, default=Job.rows, help=f"of the largest table: {Job.rows}")
    parser.add_argument("--batch", type=int, default=Job.batch, help=f"examples in a step, of all workers: {Job.batch}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync", help="sync unless given")
    parser.add_argument("--compute-us", type=int, default=0, metavar="N", help="computing in the exchange, a pause: 0")
    parser.add_argument("--systems", default="sealane,sealane-tcp,grpc", help=f"some of {', '.join(SYSTEMS)}")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the report")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help="draw AUC over time and steps/s: an .svg or .png")
    options = parser.parse_args()
    options.systems = options.systems.split(",")
    steps = min(options.steps, options.exchange_steps)
    if min(options.workers, options.rounds, options.rows) < 1 or steps < 2 or options.compute_us < 0:
        parser.error("needed are a worker, a round, a row and two steps, and a pause that is not negative")
    if options.batch < 1 or options.batch % options.workers:
        parser.error(f"{options.batch} examples cannot be shared by {options.workers} workers")
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
        import dlrm_plot

        dlrm_plot.draw(report, options.plot)
    if report["losses_equal"]:
        print("all losses and AUC are those of one process, to the bit")
    elif options.mode == "sync":
        sys.exit("the losses are not those of one process")


if __name__ == "__main__":
    main()
