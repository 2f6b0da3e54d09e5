"""The child of `service`: estimates, one after the other, with TensorFlow loaded and no GPU to be seen.

Runs as ``python -m memviz.estimation.worker``.
"""

from __future__ import annotations

import tensorflow as tf

from memviz.child.process import Channel
from memviz.estimation.estimate import estimate_network
from memviz.interchange import estimate_to_dict
from memviz.models.network import unpacked


def main() -> None:
    """Answer requests until the parent closes the connection."""
    channel = Channel()
    tf.get_logger().setLevel("ERROR")
    while True:
        request = channel.receive()
        try:
            channel.send({"estimate": estimate_to_dict(estimate_network(*unpacked(request["question"])))})
        except Exception as error:
            channel.send({"error": type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
