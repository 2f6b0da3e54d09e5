"""Replacing a method of a class of Keras for a while, by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_users: dict[tuple[type, str], int] = {}
_originals: dict[tuple[type, str], Any] = {}


@contextmanager
def patched(owner: type, replacements: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Attributes of a class are others until the last of the threads that want it so has left.

    replacements: name -> a function from the original attribute to what stands in for it. Everybody's calls go there,
    so what stands in acts only in the context that asked for it.
    """
    with _lock:
        for name, make in replacements.items():
            _users[owner, name] = _users.get((owner, name), 0) + 1
            if _users[owner, name] == 1:
                if name in vars(owner):  # else it is inherited
                    _originals[owner, name] = vars(owner)[name]
                setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        with _lock:
            for name in replacements:
                _users[owner, name] -= 1
                if _users[owner, name] == 0:
                    delattr(owner, name)
                    if (owner, name) in _originals:
                        setattr(owner, name, _originals.pop((owner, name)))
