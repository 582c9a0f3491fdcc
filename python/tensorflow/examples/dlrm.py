"""A DLRM (Naumov et al., 2019) by ParameterServerStrategy: the chief schedules steps on the workers, embedding tables are
sharded over the parameter servers.

    python dlrm.py                       # a chief, 2 ps and 2 workers, over gRPC and over Sealane in turn
    python dlrm.py --workers 1           # one order of updates: losses are equal to the bit
    python dlrm.py --plot dlrm.svg
"""

import criteo
import launch

WIDTH = 16
RATE = 0.03
# A table is sharded over the parameter servers into parts of no less.
SHARD_BYTES = 64 << 10
# The chief schedules at most so many steps before it waits for them.
SCHEDULED_MAX = 20


def dlrm():
    """The variables, and what gives the loss of a batch; to be called in a strategy's scope."""
    import tensorflow as tf

    random = tf.random.Generator.from_seed(1)

    def variable(name, *shape, scale):
        return tf.Variable(random.normal(shape, stddev=scale), name=name)

    def layers(name, *widths):
        for number, (before, after) in enumerate(zip(widths, widths[1:])):
            kernel = variable(f"{name}/{number}/kernel", before, after, scale=(2 / before) ** 0.5)
            yield kernel, tf.Variable(tf.zeros([after]), name=f"{name}/{number}/bias")

    def through(layers, inputs):
        *hidden, (kernel, bias) = layers
        for each, its_bias in hidden:
            inputs = tf.nn.relu(inputs @ each + its_bias)
        return inputs @ kernel + bias

    vectors = 1 + len(criteo.ROWS)
    pairs = [one * vectors + other for one in range(vectors) for other in range(one)]
    tables = [variable(f"table/{number}", rows, WIDTH, scale=0.1) for number, rows in enumerate(criteo.ROWS)]
    bottom = list(layers("bottom", criteo.NUMBERS, 64, WIDTH))
    top = list(layers("top", WIDTH + len(pairs), 128, 64, 1))

    def loss(clicks, numbers, categories):
        dense = through(bottom, numbers)
        rows = [tf.nn.embedding_lookup(table, categories[:, number]) for number, table in enumerate(tables)]
        features = tf.stack([dense, *rows], axis=1)
        products = tf.reshape(tf.matmul(features, features, transpose_b=True), [-1, vectors * vectors])
        mixed = tf.concat([dense, tf.gather(products, pairs, axis=1)], axis=1)
        logits = through(top, mixed)[:, 0]
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=logits))

    made = [*tables, *(each for layer in bottom + top for each in layer)]
    # What is sharded is several variables.
    return [part for each in made for part in getattr(each, "variables", [each])], loss


def step_of(strategy):
    """A step of training, of every replica of the strategy: gives its loss."""
    import tensorflow as tf

    with strategy.scope():
        variables, loss_of = dlrm()
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(RATE)

    def replica(clicks, numbers, categories):
        with tf.GradientTape() as tape:
            loss = loss_of(clicks, numbers, categories)
            # Gradients of replicas are summed.
            part = loss / strategy.num_replicas_in_sync
        optimizer.apply_gradients(zip(tape.gradient(part, variables), variables))
        return loss

    return tf.function(lambda batches: strategy.run(replica, next(batches)))


def task(options, cluster, job, index, protocol):
    import tensorflow as tf

    # Reads `TF_CONFIG`; `rpc_layer` is the protocol.
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer=protocol)
    if job != "chief":
        server = tf.distribute.Server(resolver.cluster_spec(), job_name=job, task_index=index, protocol=protocol)
        return launch.serve(server)

    shards = tf.distribute.experimental.partitioners.MinSizePartitioner(SHARD_BYTES, max_shards=len(cluster["ps"]))
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=shards)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step = step_of(strategy)

    def part():
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return criteo.read(options.data, options.batch, worker, len(cluster["worker"]))

    batches = iter(coordinator.create_per_worker_dataset(part))
    journal = launch.Journal(options.steps)
    scheduled = max(1, min(options.steps // 10, SCHEDULED_MAX))
    for done in range(0, options.steps, scheduled):
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(min(scheduled, options.steps - done))]
        coordinator.join()
        journal.add(*(loss.fetch() for loss in losses))
    journal.end()


if __name__ == "__main__":
    launch.main(
        __doc__,
        task,
        jobs=lambda options: {"ps": options.ps, "worker": options.workers, "chief": 1},
        trainers="chief",
    )
