"""The public names and where they live."""

from . import failure, interchange, profile, setup, units, views
from .estimation.result import Estimate
from .estimation.service import estimate
from .measurement.monitor import MemoryMonitor
from .measurement.result import Trial
from .measurement.trial import measure
from .models import presets
from .models.convnet import ConvBlock, ConvNet
from .profile import Allocation, Category, MemoryProfile
from .setup import TrainingSetup
from .views.explorer import explore

__version__: str
__all__ = [
    "Allocation", "Category", "ConvBlock", "ConvNet", "Estimate", "MemoryMonitor", "MemoryProfile", "TrainingSetup",
    "Trial", "estimate", "explore", "failure", "interchange", "measure", "presets", "profile", "setup", "units",
    "views",
]  # fmt: skip
