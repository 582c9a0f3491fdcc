"""A small DLRM (Naumov et al., 2019) in numpy: what it computes, and clicks to train it on. Nothing here knows of tasks."""

import os

# One thread a process: the tables below are small, and sums are then the same in every process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

DENSE_FEATURES = 13
TABLES = 6
ROWS = 5_000
WIDTH = 16
HIDDEN = 32
BATCH = 256
RATE = 0.5

# Bottom and top are two layers each; between them every pair of vectors gives one number.
PAIRS = [(i, j) for i in range(TABLES + 1) for j in range(i)]
SHAPES = {
    "bottom/0/kernel": (DENSE_FEATURES, HIDDEN),
    "bottom/0/bias": (HIDDEN,),
    "bottom/1/kernel": (HIDDEN, WIDTH),
    "bottom/1/bias": (WIDTH,),
    "top/0/kernel": (WIDTH + len(PAIRS), HIDDEN),
    "top/0/bias": (HIDDEN,),
    "top/1/kernel": (HIDDEN, 1),
    "top/1/bias": (1,),
}


def parameters(seed):
    """The dense parameters by name, and the embedding tables."""
    random = np.random.default_rng(seed)
    dense = {}
    for name, shape in SHAPES.items():
        scale = np.sqrt(2 / shape[0]) if len(shape) == 2 else 0
        dense[name] = (random.standard_normal(shape) * scale).astype(np.float32)
    tables = [(random.standard_normal((ROWS, WIDTH)) * 0.1).astype(np.float32) for _ in range(TABLES)]
    return dense, tables


class Clicks:
    """Impressions, and whether they were clicked on: by rules that the model has to find out."""

    def __init__(self, seed):
        self.seed = seed
        random = np.random.default_rng(seed)
        self.taste = random.standard_normal(DENSE_FEATURES)
        self.appeal = random.standard_normal((TABLES, ROWS)) * 0.5

    def batch(self, step):
        """Dense features, a row of each table, and clicks: the same for every caller that asks for this step."""
        random = np.random.default_rng([self.seed, step])
        dense = random.standard_normal((BATCH, DENSE_FEATURES)).astype(np.float32)
        # Few rows are popular and most are rare, as users and items are.
        rows = (random.random((TABLES, BATCH)) ** 4 * ROWS).astype(np.int64)
        logits = dense @ self.taste + sum(appeal[row] for appeal, row in zip(self.appeal, rows))
        clicks = random.random(BATCH) < 1 / (1 + np.exp(-logits))
        return dense, rows, clicks.astype(np.float32)

    def share(self, step, worker, workers):
        """One worker's part of a batch."""
        part = slice(worker * BATCH // workers, (worker + 1) * BATCH // workers)
        dense, rows, clicks = self.batch(step)
        return dense[part], rows[:, part], clicks[part]


def gradients(dense, embeddings, features, clicks):
    """The loss, its gradients for the dense parameters by name, and for the embeddings: sums over the examples given."""
    # Forward.
    hidden = np.maximum(features @ dense["bottom/0/kernel"] + dense["bottom/0/bias"], 0)
    bottom = hidden @ dense["bottom/1/kernel"] + dense["bottom/1/bias"]
    vectors = np.stack([bottom, *embeddings])
    products = np.stack([np.sum(vectors[i] * vectors[j], axis=1) for i, j in PAIRS], axis=1)
    mixed = np.concatenate([bottom, products], axis=1)
    deep = np.maximum(mixed @ dense["top/0/kernel"] + dense["top/0/bias"], 0)
    logits = (deep @ dense["top/1/kernel"] + dense["top/1/bias"])[:, 0]
    loss = np.sum(np.logaddexp(0, logits) - clicks * logits)

    # Backward.
    found = {}
    error = (1 / (1 + np.exp(-logits)) - clicks)[:, None]
    error = layer_gradients("top/1", found, dense, deep, error) * (deep > 0)
    error = layer_gradients("top/0", found, dense, mixed, error)
    bottom_error, product_errors = error[:, :WIDTH], error[:, WIDTH:]
    vector_errors = np.zeros_like(vectors)
    for pair, (i, j) in enumerate(PAIRS):
        vector_errors[i] += product_errors[:, pair, None] * vectors[j]
        vector_errors[j] += product_errors[:, pair, None] * vectors[i]
    error = layer_gradients("bottom/1", found, dense, hidden, bottom_error + vector_errors[0]) * (hidden > 0)
    layer_gradients("bottom/0", found, dense, features, error)
    return loss, found, vector_errors[1:]


def layer_gradients(layer, found, dense, inputs, error):
    """Notes the gradients of one layer, and gives that of its inputs."""
    found[f"{layer}/kernel"] = inputs.T @ error
    found[f"{layer}/bias"] = error.sum(axis=0)
    return error @ dense[f"{layer}/kernel"].T


def row_gradients(touched, which, errors):
    """Gradients of the rows that were touched, from those of the examples that touched them."""
    found = np.zeros((len(touched), WIDTH), np.float32)
    np.add.at(found, which, errors)
    return found


def update(dense, tables, shares):
    """One step of SGD, in place. ``shares`` has each worker's rows and gradients, and they are added in this order."""
    for name, parameter in dense.items():
        parameter -= RATE / BATCH * sum(share["dense"][name] for share in shares)
    for share in shares:
        for table, touched, found in zip(tables, share["touched"], share["rows"]):
            table[touched] -= RATE / BATCH * found
