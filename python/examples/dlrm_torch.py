"""The DLRM of `dlrm.py` in PyTorch: all but the model's maths is the same, and so are the options.

    python dlrm_torch.py
"""

import sys

try:
    import torch
except ImportError:
    sys.exit(print("skipped: torch is not installed") or 0)

import dlrm
import dlrm_model
from torch.nn import functional

torch.set_num_threads(1)
ROWS, COLUMNS = torch.tril_indices(dlrm_model.VECTORS, dlrm_model.VECTORS, offset=-1)


def forward(dense, vectors, features):
    def layer(name, inputs):
        return inputs @ dense[f"{name}/kernel"] + dense[f"{name}/bias"]

    bottom = layer("bottom/1", functional.relu(layer("bottom/0", features)))
    vectors = torch.cat([bottom[:, None], vectors], dim=1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))[:, ROWS, COLUMNS]
    mixed = torch.cat([bottom, products], dim=1)
    return layer("top/1", functional.relu(layer("top/0", mixed)))[:, 0]


def predict(dense, vectors, features):
    """As that of `dlrm_model`."""
    with torch.no_grad():
        return forward(dlrm_model.layers(torch.from_numpy(dense)), *map(torch.from_numpy, (vectors, features))).numpy()


def gradients(dense, vectors, features, clicked):
    """As that of `dlrm_model`, without a copy of what was pulled or is pushed."""
    features, clicked = torch.from_numpy(features), torch.from_numpy(clicked)
    dense, vectors = torch.from_numpy(dense).requires_grad_(), torch.from_numpy(vectors).requires_grad_()
    logits = forward(dlrm_model.layers(dense), vectors, features)
    loss = functional.binary_cross_entropy_with_logits(logits, clicked, reduction="sum")
    loss.backward()
    return loss.item(), dense.grad.numpy(), vectors.grad.numpy()


if __name__ == "__main__":
    dlrm.main("dlrm_torch")
