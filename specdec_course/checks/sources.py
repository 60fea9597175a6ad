"""Run the source of a notebook's cells, so that tracebacks show its lines."""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any


def new_module(name: str) -> types.ModuleType:
    """Return an empty module for cells to run in, known under its name (dataclasses look theirs up)."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def execute(label: str, source: str, namespace: dict[str, Any]) -> None:
    """Run `source` in `namespace`; whatever it raises comes through."""
    shown = f"<{label}>"
    linecache.cache[shown] = (len(source), None, source.splitlines(keepends=True), shown)
    exec(compile(source, shown, "exec", dont_inherit=True), namespace)
