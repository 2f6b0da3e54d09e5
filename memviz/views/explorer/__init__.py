"""The explorer: a network and its training on knobs, the estimate beside a real trial. The only room of widgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memviz.models.convnet import ConvNet
from memviz.views.explorer.own import own_network

if TYPE_CHECKING:
    from memviz.views.explorer.panel import Explorer

_open_in_cell: dict[str, Explorer] = {}


def explore(network: Any = None, **options: Any) -> Explorer:
    """Open the explorer: made for the last line of a notebook cell.

    network: a `ConvNet`, for knobs that build it (None: the bird-audio preset, or a smaller one where memory is short);
    a keras.Model, which stays as it is; or a function that returns one, with a knob for each argument whose default is
    a number, a text, True or False, and a list for one annotated as a Literal. options: where the knobs of training
    start, as keywords of `memviz.estimate`: batch_size=64, optimizer="sgd", device="T4".

    Raises TypeError for what is no network, a function with an argument that has no default, and an option that
    `memviz.estimate` does not have; ValueError for an option's value that is not possible.
    """
    if network is not None and not isinstance(network, ConvNet):
        network = own_network(network)
    from IPython.core.getipython import get_ipython

    from memviz.estimation.service import shared_service

    shared_service().start()  # its child loads TensorFlow while this process loads plotly
    from memviz.views.explorer.panel import Explorer

    message: Any = getattr(get_ipython(), "get_parent", dict)()
    cell = message.get("metadata", {}).get("cellId")
    if cell in _open_in_cell:  # the cell ran again: its earlier panel can no longer be seen
        _open_in_cell.pop(cell).close()
    explorer = Explorer(network, **options)
    if cell is not None:
        _open_in_cell[cell] = explorer
    return explorer
