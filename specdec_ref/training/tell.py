"""How a long recipe tells what it is doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str, int, int, str], object]  # what is done, how much of it, how much in all, and a remark
