"""memviz: where do the bytes of one training step go? Estimated and measured, side by side."""

import lazy_loader

__version__ = "0.1.0"
# Loaded on first use, so that `import memviz` imports neither TensorFlow nor plotly nor ipywidgets: see __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
