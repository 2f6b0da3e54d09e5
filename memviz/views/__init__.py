"""Profiles to tables, figures, a page and the explorer's panel; each loaded on first use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["explorer", "figures", "page", "tables"])
