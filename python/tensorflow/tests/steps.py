"""Steps that several tests run, in their jobs' processes."""

import time

import tensorflow as tf

import cluster

v1 = tf.compat.v1
SIZE = 10_000


def device(job, index=0):
    return f"/job:{job}/task:{index}/cpu:0"


def train(parameter_servers=1, steps=3, worker=0, partitioned=False, initialize=True):
    """Pulls variables of the parameter servers to this worker, and pushes 1 to each, so many times. Gives what was pulled, as one number a
    step and variable, and how many seconds the first step took, in which the pairs are settled."""
    with tf.Graph().as_default() as graph:
        variables = []
        for number in range(parameter_servers):
            with tf.device(device("ps", number)):
                initial = v1.constant_initializer(float(number))
                variables.append(v1.get_variable(f"variable{number}", [SIZE], tf.float32, initial, use_resource=True))
        if partitioned:
            with v1.device(v1.train.replica_device_setter(parameter_servers)), v1.variable_scope(
                "", partitioner=v1.fixed_size_partitioner(parameter_servers)
            ):
                variables += list(v1.get_variable("shared", [parameter_servers * SIZE], tf.float32, v1.zeros_initializer(), use_resource=True))
        pulled, pushed = [], []
        for variable in variables:
            with tf.device(variable.device):
                read = variable.read_value()
            with tf.device(device("worker", worker)):
                pulled.append((tf.reduce_min(read) + tf.reduce_max(read)) / 2)
                ones = read * 0 + 1
            with tf.control_dependencies(pulled), tf.device(variable.device):
                pushed.append(variable.assign_add(ones, read_value=False))
        given = []
        with cluster.session(graph) as session:
            start = time.monotonic()
            if initialize:
                session.run([variable.initializer for variable in variables])
            for step in range(steps):
                given.append([float(each) for each in session.run([pulled, pushed])[0]])
                if step == 0:
                    first = time.monotonic() - start
        return given, first


def trained(parameter_servers, steps, partitioned=False):
    """What `train` gives where nobody else trains."""
    values = [*range(parameter_servers), *([0] * parameter_servers if partitioned else [])]
    return [[float(value + step) for value in values] for step in range(steps)]
