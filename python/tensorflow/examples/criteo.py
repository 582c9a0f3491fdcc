"""Clicks in the shape of Criteo's: 13 numbers and 26 categories each, and whether the ad was clicked on.

They are generated, the same for the same seed, into a file of records of one length, which `tf.data` reads in any process.
A click is drawn by rules that a model can find out, so that its loss goes down.

    python criteo.py FILE               # for tasks that are not started by their example, as in a TFJob
"""

import sys

import numpy as np

NUMBERS = 13
# Values that each category of Criteo's Kaggle data set has. Those beyond `ROWS_MAX` share rows, as hashing has it.
VALUES = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194]
VALUES += [27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]
ROWS_MAX = 10_000
ROWS = [min(values, ROWS_MAX) for values in VALUES]
RECORD = np.dtype([("click", "<f4"), ("numbers", "<f4", NUMBERS), ("categories", "<i4", len(ROWS))])


def write(path, examples=100_000, seed=7):
    """Writes so many examples."""
    random = np.random.default_rng(seed)
    records = np.zeros(examples, RECORD)
    # Counts, most of them small: models are given their logarithm.
    records["numbers"] = np.log1p(random.lognormal(1, 1.5, (examples, NUMBERS)).astype("int64"))
    logits = (records["numbers"] - records["numbers"].mean(axis=0)) @ random.normal(0, 0.3, NUMBERS) - 1
    for table, rows in enumerate(ROWS):
        # Zipf's law: the row of rank r comes up about 1/r as often as the first.
        chosen = ((rows + 1) ** random.random(examples)).astype("int64") - 1
        records["categories"][:, table] = np.minimum(chosen, rows - 1)
        logits += random.normal(0, 0.4, rows)[records["categories"][:, table]]
    records["click"] = random.random(examples) < 1 / (1 + np.exp(-logits))
    records.tofile(path)


def read(path, batch, part=0, parts=1):
    """Batches of one of several parts of the file, again and again: clicks, numbers and categories."""
    import tensorflow as tf

    def parse(records):
        columns = tf.reshape(tf.io.decode_raw(records, tf.int32), [batch, 1 + NUMBERS + len(ROWS)])
        floats = tf.bitcast(columns[:, : 1 + NUMBERS], tf.float32)
        return floats[:, 0], floats[:, 1:], columns[:, 1 + NUMBERS :]

    records = tf.data.FixedLengthRecordDataset(path, RECORD.itemsize).shard(parts, part).repeat()
    return records.batch(batch, drop_remainder=True).map(parse).prefetch(2)


if __name__ == "__main__":
    write(sys.argv[1])
