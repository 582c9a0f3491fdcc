"""What a step takes over gRPC and over Sealane: the same TensorFlow job, with one daemon, and with two and TCP between them.

    python steps.py --json steps.json

Each round runs every system in turn: a graph job of one parameter server and one worker that pulls variables and pushes
gradients of several shapes, a ParameterServerStrategy of the same, and the example `wide_deep.py` with 4 workers and 2
parameter servers. Of a round the median step counts, of all rounds the median, and ratios are of the same round.
"""

import argparse
import itertools
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import criteo  # noqa: E402
import launch  # noqa: E402

# The protocol, and how many daemons.
SYSTEMS = {"grpc": ("grpc", 0), "sealane": ("grpc+sealane", 1), "sealane-tcp": ("grpc+sealane", 2)}
WARM_UP, STEPS_MIN = 10, 20
VARIABLES, ROWS, COLUMNS = 20, 256, 1024


def resnet50():
    """The shapes of its variables: a convolution has a kernel, and a scale and an offset of its normalisation."""

    def convolution(size, inputs, outputs):
        return [(size, size, inputs, outputs), (outputs,), (outputs,)]

    shapes, inputs = convolution(7, 3, 64), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(1, inputs, 4 * width) if block == 0 else []
            shapes += convolution(1, inputs, width) + convolution(3, width, width) + convolution(1, width, 4 * width)
            inputs = 4 * width
    return [*shapes, (inputs, 1000), (1000,)]


SHAPES = {"small": [(16,)] * 1000, "resnet50": resnet50(), "one": [(16,)]}


def measure(name, seconds, step):
    """Tells the median of a step, and the CPU time of one."""
    for _ in range(WARM_UP):
        step()
    took, cpu, began = [], launch.cpu_seconds(), time.perf_counter()
    while time.perf_counter() < began + seconds or len(took) < STEPS_MIN:
        before = time.perf_counter()
        step()
        took.append(time.perf_counter() - before)
    cpu = (launch.cpu_seconds() - cpu) / len(took)
    launch.tell(measured={f"{name}_ms": 1e3 * statistics.median(took), f"{name}_cpu_ms": 1e3 * cpu})


def graphs(options, cluster, job, index, protocol):
    import tensorflow as tf

    server = tf.distribute.Server(cluster, job_name=job, task_index=index, protocol=protocol)
    if job == "ps":
        return launch.serve(server)
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    # Nothing is optimised away.
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    for name, shapes in SHAPES.items():

        def variables(kind):
            ones = v1.ones_initializer()
            return [v1.get_variable(f"{kind}{number}", shape, initializer=ones) for number, shape in enumerate(shapes)]

        with v1.Graph().as_default():
            with v1.device("/job:ps/task:0"):
                theirs = variables("theirs")
                reads = [each.read_value() for each in theirs]
            with v1.device("/job:worker/task:0"):
                pull = tf.group([tf.identity(read) for read in reads])
                one = v1.placeholder_with_default(tf.constant(1.0), [])
                gradients = [each.read_value() * one for each in variables("ours")]
            with v1.device("/job:ps/task:0"):
                push = tf.group([each.assign_add(sent, read_value=False) for each, sent in zip(theirs, gradients)])
            with v1.Session(server.target, config=config) as session:
                session.run(v1.global_variables_initializer())
                measure(f"pull_{name}", options.seconds, lambda: session.run(pull))
                if name != "one":
                    measure(f"push_{name}", options.seconds, lambda: session.run(push))


def strategy(options, cluster, job, index, protocol):
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer=protocol)
    if job != "chief":
        server = tf.distribute.Server(resolver.cluster_spec(), job_name=job, task_index=index, protocol=protocol)
        return launch.serve(server)
    spread = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(spread)
    with spread.scope():
        variables = [tf.Variable(tf.ones([ROWS, COLUMNS])) for _ in range(VARIABLES)]

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(each.read_value() ** 2) for each in variables])
        for each, gradient in zip(variables, tape.gradient(loss, variables)):
            each.assign_sub(1e-3 * gradient)

    def step():
        coordinator.schedule(train)
        coordinator.join()

    measure("strategy", options.seconds, step)


TASKS = {"graphs": graphs, "strategy": strategy}
JOBS = {"graphs": {"ps": 1, "worker": 1}, "strategy": {"ps": 1, "worker": 1, "chief": 1}}


def once(system, options, directory):
    """What one round of a system measures, and the shares of bytes that went by Sealane."""
    protocol, hosts = SYSTEMS[system]
    quietly = {"directory": directory, "progress": lambda outcome: None, "hosts": hosts}
    measured, shares = {}, []
    for name, jobs in JOBS.items():
        arguments = [pathlib.Path(__file__).resolve(), "--task", name, "--seconds", str(options.seconds)]
        # The last job trains: a worker, or the chief.
        outcome = launch.run(protocol, jobs, list(jobs)[-1], arguments, **quietly)
        measured |= outcome.measured
        shares.append(outcome.share())
    example = [EXAMPLES / "wide_deep.py", "--steps", str(options.steps), "--data", directory / "clicks"]
    outcome = launch.run(protocol, {"ps": 2, "worker": 4}, "worker", example, **quietly)
    trained = {"wide_deep_steps_per_s": outcome.steps_per_s, "wide_deep_cpu_ms": outcome.cpu_ms_per_step()}
    return measured | trained, [*shares, outcome.share()]


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def result(system, metric, values):
    found = spread(values)
    return {"system": system, "variant": "", "metric": metric, "value": found.pop("median"), **found}


def report(rounds, shares, options):
    """In the form of `sealane bench`."""
    metrics = list(rounds[0]["grpc"])
    of = {(system, metric): [each[system][metric] for each in rounds] for system in SYSTEMS for metric in metrics}
    ratios = [
        {
            "name": f"{system}/grpc",
            "of": metric,
            **spread([ours / theirs for ours, theirs in zip(of[system, metric], of["grpc", metric])]),
        }
        for system, metric in itertools.product(list(SYSTEMS)[1:], metrics)
    ]
    cpus = sorted(os.sched_getaffinity(0))
    return {
        "schema": "sealane-tensorflow/1",
        "rounds": options.rounds,
        "seconds": options.seconds,
        "steps": options.steps,
        "machine": {"cpus": len(cpus), "cpu_model": cpu_model(), "kernel": platform.release(), "pinned": []},
        # A figure of Sealane that gRPC has made would be worth nothing.
        "least_share": min(shares),
        "results": [result(*key, values) for key, values in of.items()],
        "ratios": ratios,
    }


def cpu_model():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def table(told):
    found = {(row["system"], row["metric"]): row["value"] for row in told["results"]}
    ratios = {(row["name"], row["of"]): row["median"] for row in told["ratios"]}
    print(f"{'':24}{'grpc':>10}" + "".join(f"{system:>14}{'/grpc':>7}" for system in list(SYSTEMS)[1:]))
    for metric in dict.fromkeys(metric for _, metric in found):
        cells = [f"{found[system, metric]:14.2f}{ratios[f'{system}/grpc', metric]:7.2f}" for system in list(SYSTEMS)[1:]]
        print(f"{metric:24}{found['grpc', metric]:10.2f}" + "".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement in a round: 1.5")
    parser.add_argument("--steps", type=int, default=200, help="of each worker of wide & deep: 200")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the report")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        config = json.loads(os.environ["TF_CONFIG"])
        return launch.become(config, config["rpc_layer"], TASKS[options.task], options)
    if options.rounds < 1 or options.steps < 2:
        parser.error("needed are a round and two steps")

    rounds, shares = [], []
    with tempfile.TemporaryDirectory(prefix="sealane-") as directory:
        directory = pathlib.Path(directory)
        criteo.write(directory / "clicks")
        for number in range(options.rounds):
            rounds.append({})
            for system in SYSTEMS:
                print(f"round {number + 1} of {options.rounds}: {system}", file=sys.stderr)
                rounds[-1][system], by_sealane = once(system, options, directory)
                if system != "grpc":
                    shares += [share or 0 for share in by_sealane]
    told = report(rounds, shares, options)
    table(told)
    print(f"at least {told['least_share']:.2%} of the bytes went by Sealane")
    if options.json:
        options.json.write_text(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
