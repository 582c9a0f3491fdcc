"""Clicks to train on, generated in the shape of the Criteo data set, and how well they are predicted."""

import os

# One thread a process: the matrices of the model are small, and sums are then the same in every process. Before numpy is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

# Rows of each table of the Criteo Kaggle data set, of which `rows_of_tables` makes smaller ones.
CRITEO = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194]
CRITEO += [27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]
DENSE_FEATURES = 13
# How popular rows are: the k-th is used as often as 1 / k ** ZIPF says.
ZIPF = 1.05


def rows_of_tables(largest):
    """The rows of each table if the largest has so many. Small ones stay as they are."""
    return [max(min(rows, 100), rows * largest // max(CRITEO)) for rows in CRITEO]


class Clicks:
    """Impressions, and whether they were clicked on: by rules that a model has to find out."""

    def __init__(self, rows, seed):
        self.seed, self.rows = seed, np.array(rows, np.float64)
        # Tables lie behind one another: this is where each begins.
        self.first = np.cumsum([0, *rows[:-1]])
        self.taste = np.random.default_rng(seed).standard_normal(DENSE_FEATURES, np.float32) * 0.3

    def batches(self, count, worker):
        """Yields dense features, a row of each table, and clicks: always the same for this worker."""
        random = np.random.default_rng([self.seed, worker])
        while True:
            yield self.batch(count, random)

    def batch(self, count, random):
        features = random.standard_normal((count, DENSE_FEATURES), np.float32)
        # The inverse of the distribution, as if ranks were no whole numbers.
        power = 1 - ZIPF
        ranks = (1 + random.random((count, len(self.rows))) * ((self.rows + 1) ** power - 1)) ** (1 / power)
        ids = np.minimum(ranks - 1, self.rows - 1).astype(np.int64) + self.first
        logits = features @ self.taste + self.appeal(ids).sum(axis=1) - 1
        clicked = random.random(count) < 1 / (1 + np.exp(-logits))
        return features, ids, clicked.astype(np.float32)

    def appeal(self, ids):
        """Of each row, evenly distributed: not kept, for there may be many rows."""
        scattered = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
        return scattered / 2.0**24 - 0.5


def auc(scores, clicked):
    """The area under the ROC curve: how likely a click has a higher score than none. Equal scores count half."""
    values, which = np.unique(scores, return_inverse=True)
    clicks = np.bincount(which, clicked, len(values))
    others = np.bincount(which, 1 - clicked, len(values))
    lower = np.cumsum(others) - others
    return float(np.sum(clicks * (lower + others / 2)) / (np.sum(clicks) * np.sum(others)))
