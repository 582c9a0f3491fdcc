"""The parameter server of the README's example: gives a worker its weights, receives a gradient."""

import numpy as np
import sealane

with sealane.attach("ps0:2222") as ps:
    weights = np.array([[1, 2], [3, 4]], dtype="float32")
    ps.send("worker0:2222", 1, "dense/kernel", weights)  # returns when the worker has it
    gradient = ps.recv("worker0:2222", 1, "dense/kernel:gradient")
    print("gradient", gradient.tolist())
