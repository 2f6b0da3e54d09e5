"""The child of `service`: estimates, one after the other, with TensorFlow loaded and no GPU to be seen.

Runs as ``python -m memviz.estimation.worker``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memviz.child.channel import Channel
from memviz.estimation.result import Estimate
from memviz.interchange import estimate_to_dict, setup_from_message
from memviz.models.network import Network
from memviz.setup import TrainingSetup


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    channel = Channel()
    import tensorflow as tf

    from memviz.estimation.estimate import estimate_network  # before the first request, so that it is answered at once

    tf.get_logger().setLevel("ERROR")
    while True:
        channel.send(_answer(channel.receive(), estimate_network))


def _answer(
    request: Mapping[str, Any], estimate_network: Callable[[Network, TrainingSetup], Estimate]
) -> dict[str, Any]:
    try:
        network = Network.from_message(request["network"])
        return {"estimate": estimate_to_dict(estimate_network(network, setup_from_message(request["setup"])))}
    except Exception as error:
        known = next((t.__name__ for t in (ValueError, TypeError, MemoryError) if isinstance(error, t)), "RuntimeError")
        text = str(error) if known != "RuntimeError" else f"{type(error).__name__}: {error}"
        return {"error": known, "text": text}


if __name__ == "__main__":
    main()
