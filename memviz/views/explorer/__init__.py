"""The explorer: a network and its training on knobs, the estimate beside a real trial. The only room of widgets."""

from __future__ import annotations

from memviz.views.explorer.panel import Explorer, explore

__all__ = ["Explorer", "explore"]
