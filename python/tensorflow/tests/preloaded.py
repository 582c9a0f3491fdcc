"""What the processes of the tests are forked from: TensorFlow with the plugin, loaded once."""

import sealane.tensorflow  # noqa: F401
import tensorflow  # noqa: F401
