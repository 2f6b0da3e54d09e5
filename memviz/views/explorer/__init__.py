"""The explorer: a network and its training on knobs, the estimate beside a real trial. The only room of widgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memviz.models.convnet import ConvNet

if TYPE_CHECKING:
    from memviz.views.explorer.panel import Explorer

_open_in_cell: dict[str, Explorer] = {}


def explore(network: ConvNet | None = None) -> Explorer:
    """Open the explorer on a `ConvNet` (None: the bird-audio preset, or a smaller one where memory is short).

    Made for the last line of a notebook cell. Raises TypeError for anything else: for other networks use
    `memviz.estimate`, `memviz.measure` and the figures of `memviz.views.figures`.
    """
    if network is not None and not isinstance(network, ConvNet):
        raise TypeError(
            f"The explorer's knobs need a memviz.ConvNet, not {type(network).__name__}; give memviz.estimate(...) any "
            "network and show its .profile with memviz.views.figures.layer_figure."
        )
    from IPython.core.getipython import get_ipython

    from memviz.estimation.service import shared_service

    shared_service().start()  # its child loads TensorFlow while this process loads plotly
    from memviz.views.explorer.panel import Explorer

    message: Any = getattr(get_ipython(), "get_parent", dict)()
    cell = message.get("metadata", {}).get("cellId")
    if cell in _open_in_cell:  # the cell ran again: its earlier panel can no longer be seen
        _open_in_cell.pop(cell).close()
    explorer = Explorer(network)
    if cell is not None:
        _open_in_cell[cell] = explorer
    return explorer
