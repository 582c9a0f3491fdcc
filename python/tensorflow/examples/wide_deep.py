"""Wide & deep (Cheng et al., 2016) as a graph job: between-graph replication, variables spread over the parameter servers.

    python wide_deep.py                            # 2 ps and 2 workers, over gRPC and over Sealane in turn
    python wide_deep.py --workers 1 --sync         # one order of updates: losses are equal to the bit
    python wide_deep.py --plot wide_deep.svg

Each worker has a graph and a session of its own, pulls what its batch needs from the variables on the parameter servers,
and pushes gradients to them, with the others (`--sync`) or whenever it is done.
"""

import time

import criteo
import launch

WIDTH = 8
LAYERS = (256, 128, 64)
RATE = 0.05
# A table is split over the parameter servers into parts of no less.
PART_BYTES = 64 << 10


def logits(numbers, categories, ps):
    import tensorflow as tf

    v1 = tf.compat.v1
    split = v1.min_max_variable_partitioner(ps, min_slice_size=PART_BYTES)

    def rows(kind, width):
        """The rows of each table that the examples name."""
        for number, count in enumerate(criteo.ROWS):
            table = v1.get_variable(f"{kind}/{number}", [count, width], partitioner=split)
            yield tf.nn.embedding_lookup(table, categories[:, number])

    def layer(name, inputs, units):
        kernel = v1.get_variable(f"{name}/kernel", [inputs.shape[1], units])
        return inputs @ kernel + v1.get_variable(f"{name}/bias", [units], initializer=v1.zeros_initializer())

    deep = tf.concat([numbers, *rows("deep", WIDTH)], axis=1)
    for number, units in enumerate(LAYERS):
        deep = tf.nn.relu(layer(f"layer{number}", deep, units))
    return (layer("out", deep, 1) + tf.add_n(list(rows("wide", 1))))[:, 0]


def task(options, cluster, job, index, protocol):
    import tensorflow as tf

    server = tf.distribute.Server(cluster, job_name=job, task_index=index, protocol=protocol)
    if job == "ps":
        return launch.serve(server)

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.set_random_seed(1)
    ps, workers, chief = len(cluster["ps"]), len(cluster["worker"]), index == 0
    with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")):
        data = criteo.read(options.data, options.batch, index, workers)
        clicks, numbers, categories = v1.data.make_one_shot_iterator(data).get_next()
        given = logits(numbers, categories, ps)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=given))
        optimizer, hooks = v1.train.AdagradOptimizer(RATE), []
        if options.sync:
            optimizer = v1.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=workers)
            hooks = [optimizer.make_session_run_hook(chief, num_tokens=0)]
        train = optimizer.minimize(loss, v1.train.get_or_create_global_step())

    # A worker needs the parameter servers, and no other worker.
    config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    if not chief:
        wait_for_chief(server, config)
    journal = launch.Journal(options.steps)
    how = {"is_chief": chief, "hooks": hooks, "config": config}
    # With `--sync` the chief's thread waits for gradients that come no more, for two minutes by default.
    with v1.train.MonitoredTrainingSession(server.target, stop_grace_period_secs=1, **how) as session:
        for _ in range(options.steps):
            journal.add(session.run([loss, train])[0])
        journal.end()


def wait_for_chief(server, config):
    """Waits until the chief has set all variables: `MonitoredTrainingSession` would look only every 30 s."""
    import tensorflow as tf

    v1 = tf.compat.v1
    missing = v1.report_uninitialized_variables(v1.global_variables())
    with v1.Session(server.target, config=config) as session:
        while session.run(missing).size:
            time.sleep(0.1)


if __name__ == "__main__":
    launch.main(
        __doc__,
        task,
        jobs=lambda options: {"ps": options.ps, "worker": options.workers},
        trainers="worker",
        add=lambda parser: parser.add_argument("--sync", action="store_true", help="all workers update together"),
    )
