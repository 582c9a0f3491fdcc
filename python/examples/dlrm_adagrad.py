"""What a parameter server of a DLRM has, and how it learns by AdaGrad. Nothing here knows of tasks."""

import hashlib

import dlrm_clicks  # noqa: F401, before numpy
import numpy as np
from dlrm_model import WIDTH, initialize

SEED = 7
RATE = 0.05
# So that nothing is divided by zero.
SQUARES_MIN = 1e-12
# Rows that are made at a time, by a seed of their own.
BLOCK = 1 << 20


class Part:
    """What one parameter server has: every so many-th row of all tables and of the dense parameters; and for AdaGrad, sums
    of squares of each row's gradients and of each dense one's."""

    def __init__(self, job, number, owners, empty=np.empty):
        every, total, at = slice(number, None, owners), sum(job.tables), 0
        self.batch, self.rows = job.batch, empty((len(range(total)[every]), WIDTH), np.float32)
        for start in range(0, total, BLOCK):
            block = np.random.default_rng([SEED, start]).standard_normal((min(BLOCK, total - start), WIDTH), np.float32)
            mine = block[(number - start) % owners :: owners]
            self.rows[at : at + len(mine)] = 0.05 * mine
            at += len(mine)
        dense = np.zeros(job.dense_shape, np.float32)
        initialize(dense, SEED)
        self.dense = empty(dense[every].shape, np.float32)
        self.dense[:] = dense[every]
        self.row_squares, self.dense_squares = np.zeros(len(self.rows), np.float32), np.zeros_like(self.dense)

    def learn(self, pushed):
        """What is to be added to which rows and to the dense parameters: one step of AdaGrad. Of each worker, ``pushed`` has
        numbers of rows, each once, their gradients, and the dense ones; they are added in this order."""
        ids, which = np.unique(np.concatenate([ids for ids, _, _ in pushed]), return_inverse=True)
        sums, at = np.zeros((len(ids), WIDTH), np.float32), 0
        for its_ids, gradients, _ in pushed:
            sums[which[at : at + len(its_ids)]] += gradients
            at += len(its_ids)
        sums /= self.batch
        dense = sum(dense for _, _, dense in pushed) / np.float32(self.batch)
        squares = self.row_squares[ids] + np.einsum("ij,ij->i", sums, sums) / np.float32(WIDTH)
        self.row_squares[ids] = squares
        self.dense_squares += dense * dense
        rates = -RATE / np.sqrt(squares + SQUARES_MIN), -RATE / np.sqrt(self.dense_squares + SQUARES_MIN)
        return ids, sums * rates[0][:, None], dense * rates[1]


def digest(rows, dense):
    """What parameters are compared by."""
    return hashlib.sha256(np.ascontiguousarray(rows)).hexdigest() + hashlib.sha256(dense).hexdigest()


def summed(count, which, gradients):
    """The gradients of so many rows, added up in order: ``which`` says for each whose it is."""
    sums = np.zeros(count * WIDTH, np.float32)
    np.add.at(sums, (which.reshape(-1, 1) * WIDTH + np.arange(WIDTH)).ravel(), gradients.ravel())
    return sums.reshape(-1, WIDTH)
