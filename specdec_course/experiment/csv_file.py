"""The cells as a table for a spreadsheet: one line each, numbers unrounded, empty where there is none."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdec_course.experiment.verdict import Measured, word


def as_csv(cells: Sequence[Measured]) -> str:
    """Return the text of the file. A nested name is joined: `on.inter_token_ms.p95`."""
    lines = [{"verdict": word(cell)} | dict(flat(cell)) for cell in cells]
    columns = list(dict.fromkeys(column for line in lines for column in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number and text with its joined name; a list becomes numbers in one field."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        elif isinstance(value, list):
            yield f"{before}{name}", " ".join(str(one) for one in value if not isinstance(one, Mapping))
        else:
            yield f"{before}{name}", value
