"""Profiles to tables, figures, a page and the explorer's panel; each loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = ("explorer", "figures", "page", "tables")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'memviz.views' has no attribute {name!r}")
    return importlib.import_module(f"memviz.views.{name}")
