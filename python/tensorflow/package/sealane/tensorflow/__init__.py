"""A job's tensors through the hosts' Sealane daemons: TensorFlow's server protocol ``grpc+sealane``.

    import sealane.tensorflow

    server = tf.distribute.Server(cluster, job_name="ps", task_index=0, protocol="grpc+sealane")

Importing this registers the protocol, and ``grpc++`` for DeepRec scripts; nothing else changes. A task's name is its
``host:port`` in the cluster. Tensors between tasks in the daemons' endpoint map use Sealane; all other traffic uses
gRPC. With ``SEALANE_TF=off`` in the environment, everything uses gRPC.
"""

import ctypes as _ctypes
import json as _json
from pathlib import Path as _Path
from typing import Any as _Any

__all__ = ["report"]

_HERE = _Path(__file__).parent
_LIBRARY = str(_HERE / "libsealane_tensorflow.so")
# Beside the library, which another TensorFlow could not even load to ask it.
_BUILT_FOR = (_HERE / "built_for").read_text()
_MEND = (
    f"run pip install tensorflow-cpu=={_BUILT_FOR} (or tensorflow=={_BUILT_FOR}), or build the plugin for another "
    "TensorFlow by pip install ./python/tensorflow in a checkout of Sealane"
)

try:
    import tensorflow as _tf
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ImportError(f"sealane.tensorflow needs TensorFlow {_BUILT_FOR}, and none is installed: {_MEND}") from None

_IS = f"this is TensorFlow {_tf.__version__}"
if _tf.__version__ != _BUILT_FOR:
    raise ImportError(f"sealane.tensorflow was built for TensorFlow {_BUILT_FOR}, and {_IS}: {_MEND}")
try:
    _tf.load_library(_LIBRARY)
except _tf.errors.OpError as error:
    raise ImportError(f"{_IS}, which cannot load sealane.tensorflow ({error.message}): {_MEND}") from None

_plugin = _ctypes.CDLL(_LIBRARY)
_plugin.sealane_tensorflow_report.restype = _ctypes.c_void_p
_free = _ctypes.CDLL(None).free
_free.argtypes = [_ctypes.c_void_p]
_free.restype = None


def report() -> dict[str, _Any]:
    """The transports that the tensors of this process's servers have used so far.

    ``report()["servers"]`` has an entry for each server: its ``task`` (``host:port``), its ``name``, whether it is
    ``attached`` to a daemon, and ``pairs`` with the tasks of its cluster. A pair has the ``peer``'s name and its
    ``address``, the ``route`` that it takes (``"sealane"``, ``"grpc"`` or ``"settling"``) and ``why``, and for each of
    ``sealane`` and ``grpc`` four numbers: ``sent_tensors``, ``sent_bytes``, ``received_tensors``, ``received_bytes``.
    """
    text = _plugin.sealane_tensorflow_report()
    if not text:
        raise MemoryError
    try:
        return _json.loads(_ctypes.string_at(text))
    finally:
        _free(text)
