"""memviz: where do the bytes of one training step go? Estimated and measured, side by side."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz.estimation.result import Estimate
    from memviz.estimation.service import estimate
    from memviz.measurement.monitor import MemoryMonitor
    from memviz.measurement.result import Trial
    from memviz.measurement.trial import measure
    from memviz.models import presets
    from memviz.models.convnet import ConvBlock, ConvNet
    from memviz.profile import Allocation, Category, MemoryProfile
    from memviz.setup import TrainingSetup
    from memviz.views.explorer import explore

__version__ = "0.1.0"

# Loaded on first use, so that `import memviz` imports neither TensorFlow nor plotly nor ipywidgets.
_HOMES = {
    "estimate": "memviz.estimation.service",
    "Estimate": "memviz.estimation.result",
    "measure": "memviz.measurement.trial",
    "Trial": "memviz.measurement.result",
    "MemoryMonitor": "memviz.measurement.monitor",
    "explore": "memviz.views.explorer",
    "presets": "memviz.models",
    "ConvNet": "memviz.models.convnet",
    "ConvBlock": "memviz.models.convnet",
    "Allocation": "memviz.profile",
    "Category": "memviz.profile",
    "MemoryProfile": "memviz.profile",
    "TrainingSetup": "memviz.setup",
}
_MODULES = ("failure", "interchange", "profile", "setup", "units", "views")
__all__ = [
    "Allocation", "Category", "ConvBlock", "ConvNet", "Estimate", "MemoryMonitor", "MemoryProfile", "TrainingSetup",
    "Trial", "estimate", "explore", "measure", "presets",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"memviz.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'memviz' has no attribute {name!r}")
    home = importlib.import_module(f"{_HOMES[name]}.presets" if name == "presets" else _HOMES[name])
    value = home if name == "presets" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
