"""How a benchmark ends: line by line, how many keep their bar, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable


def kept(lines: Iterable[tuple[str, bool]], summary: str, mark: str = "MISSED") -> int:
    """Print lines as they come, marked where a bar is missed, and then how many keep it; 1 where one does not, else 0.

    lines: (text, whether the bar is kept). summary: what follows "3 of 4".
    """
    found: list[bool] = []
    for text, holds in lines:
        print(f"{text}{'' if holds else f'  {mark}'}", flush=True)
        found.append(holds)
    print(f"{sum(found)} of {len(found)} {summary}")
    return 0 if all(found) else 1
