"""What is trained: the explorer's network as data, presets, and building any network without memory."""

from memviz.models import presets as presets
