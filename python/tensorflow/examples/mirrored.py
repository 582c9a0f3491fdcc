"""The DLRM of `dlrm.py` by MultiWorkerMirroredStrategy: every worker has all variables, and their gradients are summed by
rings over the workers' CPUs. Updates are made in one order, so losses are equal to the bit.

    python mirrored.py                   # 2 workers, over gRPC and over Sealane in turn
    python mirrored.py --plot mirrored.svg
"""

import criteo
import dlrm
import launch


def task(options, cluster, job, index, protocol):
    import tensorflow as tf

    # Reads `TF_CONFIG`; `rpc_layer` is the protocol.
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer=protocol)
    rings = tf.distribute.experimental.CommunicationImplementation.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        resolver, tf.distribute.experimental.CommunicationOptions(implementation=rings)
    )
    step = dlrm.step_of(strategy)
    batches = iter(criteo.read(options.data, options.batch, index, len(cluster["worker"])))
    journal = launch.Journal(options.steps)
    for _ in range(options.steps):
        journal.add(step(batches))
    journal.end()


if __name__ == "__main__":
    launch.main(
        __doc__,
        task,
        jobs=lambda options: {"worker": options.workers},
        trainers="worker",
        ps=None,
        in_order=lambda options: True,
    )
