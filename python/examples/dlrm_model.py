"""A small DLRM (Naumov et al., 2019) in numpy: what it computes. Nothing here knows of tasks or tables."""

import itertools
import math

import dlrm_clicks as clicks
import numpy as np

WIDTH = 16
HIDDEN = 32
# Every pair of vectors gives one number: they are those of the tables, and one of the dense features.
VECTORS = len(clicks.CRITEO) + 1
PAIRS = np.array([row * VECTORS + column for row in range(VECTORS) for column in range(row)])

# Bottom and top are two layers each.
SHAPES = {
    "bottom/0/kernel": (clicks.DENSE_FEATURES, HIDDEN),
    "bottom/0/bias": (HIDDEN,),
    "bottom/1/kernel": (HIDDEN, WIDTH),
    "bottom/1/bias": (WIDTH,),
    "top/0/kernel": (WIDTH + len(PAIRS), HIDDEN),
    "top/0/bias": (HIDDEN,),
    "top/1/kernel": (HIDDEN, 1),
    "top/1/bias": (1,),
}
# They lie behind one another in one array: this is where each ends.
ENDS = dict(zip(SHAPES, itertools.accumulate(math.prod(shape) for shape in SHAPES.values())))
DENSE = max(ENDS.values())


def layers(dense):
    """The dense parameters by name, as views of the array, which may be longer."""
    dense = dense.reshape(-1)
    return {name: dense[ENDS[name] - math.prod(shape) : ENDS[name]].reshape(shape) for name, shape in SHAPES.items()}


def initialize(dense, seed):
    random = np.random.default_rng(seed)
    for name, values in layers(dense).items():
        if name.endswith("kernel"):
            values[:] = random.standard_normal(values.shape) * np.sqrt(2 / len(values))


def predict(dense, vectors, features):
    """Logits of clicks, from the dense parameters, the tables' rows of each example, and its dense features."""
    return forward(layers(dense), vectors, features)[0]


def forward(dense, vectors, features):
    hidden = np.maximum(features @ dense["bottom/0/kernel"] + dense["bottom/0/bias"], 0)
    bottom = hidden @ dense["bottom/1/kernel"] + dense["bottom/1/bias"]
    vectors = np.concatenate([bottom[:, None], vectors], axis=1)
    products = vectors @ np.ascontiguousarray(vectors.transpose(0, 2, 1))
    mixed = np.concatenate([bottom, products.reshape(len(features), -1)[:, PAIRS]], axis=1)
    deep = np.maximum(mixed @ dense["top/0/kernel"] + dense["top/0/bias"], 0)
    logits = (deep @ dense["top/1/kernel"] + dense["top/1/bias"])[:, 0]
    return logits, (hidden, vectors, mixed, deep)


def gradients(dense, vectors, features, clicked):
    """The loss, which is a sum over these examples, and its gradients for the dense parameters and for the tables' rows."""
    all_found = np.zeros_like(dense)
    dense, found = layers(dense), layers(all_found)
    logits, (hidden, vectors, mixed, deep) = forward(dense, vectors, features)
    loss = np.sum(np.logaddexp(0, logits) - clicked * logits)

    def layer(name, inputs, error):
        """Notes the gradients of one layer, and gives that of its inputs."""
        np.matmul(inputs.T, error, out=found[f"{name}/kernel"])
        np.sum(error, axis=0, out=found[f"{name}/bias"])
        return error @ dense[f"{name}/kernel"].T

    error = (1 / (1 + np.exp(-logits)) - clicked)[:, None]
    error = layer("top/1", deep, error) * (deep > 0)
    error = layer("top/0", mixed, error)
    products = np.zeros((len(features), VECTORS * VECTORS), np.float32)
    products[:, PAIRS] = error[:, WIDTH:]
    products = products.reshape(-1, VECTORS, VECTORS)
    vector_errors = (products + products.transpose(0, 2, 1)) @ vectors
    error = layer("bottom/1", hidden, error[:, :WIDTH] + vector_errors[:, 0]) * (hidden > 0)
    layer("bottom/0", features, error)
    return loss, all_found, vector_errors[:, 1:]
