"""A figure's widget, and how it comes to show another figure. Loading plotly's widgets takes a second."""

from __future__ import annotations

from copy import deepcopy

import ipywidgets as w
import plotly.graph_objects as go

from memviz.views import figures


class Chart(go.FigureWidget):
    """plotly's widget tells the browser of itself first and sends its data after: a busy page then draws it empty."""

    _chart: figures.Chart  # what it shows

    def open(self) -> None:
        """Tell the browser, once there are data; to be called again when the widget is made."""
        if self._widget_data:
            super().open()


def shown(widget: Chart | None, chart: figures.Chart, box: w.Box) -> Chart:
    """The widget, alone in a box, after it shows a chart, in one message; only what differs travels."""
    if widget is None:  # complete before it is a widget: earlier changes can be lost (plotly PR 4956)
        widget = Chart(chart)
        widget.open()
        widget._chart = chart
    if box.children != (widget,):
        box.children = (widget,)
    before, widget._chart = widget._chart, chart
    parts = [*zip(widget.data, before["data"], chart["data"], strict=True)]
    with widget.batch_update():
        for part, now, wanted in [*parts, (widget.layout, before["layout"], chart["layout"])]:
            part.update({name: value for name, value in wanted.items() if now.get(name) != value}, overwrite=True)
    # What a view that opens later starts from, for instance after the page was loaded again; plotly itself refreshes
    # it only when the widget is displayed on its own, not inside a box.
    widget._widget_data, widget._widget_layout = deepcopy(widget._data), deepcopy(widget._layout_obj._props)
    return widget
