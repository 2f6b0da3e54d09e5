"""The public names and where they live."""

from . import cards, failure, interchange, profile, setup, units, views
from .advice.advise import Advice, Change, advise
from .advice.devices import devices
from .advice.fits import Fit, fits
from .advice.largest import Largest, max_argument, max_batch_size
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
    "Advice", "Allocation", "Category", "Change", "ConvBlock", "ConvNet", "Estimate", "Fit", "Largest", "MemoryMonitor",
    "MemoryProfile", "TrainingSetup", "Trial", "advise", "cards", "devices", "estimate", "explore", "failure", "fits",
    "interchange", "max_argument", "max_batch_size", "measure", "presets", "profile", "setup", "units", "views",
]  # fmt: skip
