"""The worker of the README's example: receives its weights, sends a gradient."""

import sealane

with sealane.attach("worker0:2222") as worker:
    weights = worker.recv("ps0:2222", 1, "dense/kernel")  # a numpy array
    worker.send("ps0:2222", 1, "dense/kernel:gradient", 0.5 * weights)
    print("weights", weights.tolist())
