"""What a million answer tokens cost: half the decoding time is not half the bill."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specdec_ref.ranges import Floats, between, positive

SECONDS_PER_HOUR = 3600.0


def cost_per_million_tokens(
    price_per_hour: ArrayLike,
    tokens_per_s: ArrayLike,
    speedup: ArrayLike = 1.0,
    *,
    prompt_share: ArrayLike = 0.0,
    idle_share: ArrayLike = 0.0,
    memory_share: ArrayLike = 0.0,
) -> Floats:
    """Return the price of a million answer tokens, in the currency of `price_per_hour`.

    Parameters
    ----------
    price_per_hour : array_like >= 0
        What the machine costs, busy or not.
    tokens_per_s : array_like > 0
        Answer tokens per second of PLAIN decoding, of all rows together, while the machine decodes.
    speedup : array_like > 0
        Of decoding, with as many rows as fit beside the second model. 1: no speculation.
    prompt_share : array_like in [0, 1)
        Share of the busy time that PLAIN serving spends on reading prompts.
    idle_share : array_like in [0, 1)
        Share of the paid time in which nothing is asked.
    memory_share : array_like in [0, 1)
        Share of the rows that no longer fit because the second model and its cache take their memory.

    Notes
    -----
    Assumed, and each to be checked against the service at hand:

    - reading prompts takes as long with speculation as without (a second model that reads them too makes it longer);
    - tokens per second grow with the rows, as they do while decoding waits for memory, so a lost row is a lost share;
    - the idle share stays the same: a faster machine saves money only where fewer machines are rented in the end, or
      each answers more. Where the demand and the number of machines are fixed, the bill is fixed too.
    """
    price = between(0, price_per_hour, np.inf, "price_per_hour")
    decoding = 1 / (positive(tokens_per_s, "tokens_per_s"))  # seconds per answer token
    prompt = _share(prompt_share, "prompt_share")
    reading = decoding * prompt / (1 - prompt)
    rows = 1 - _share(memory_share, "memory_share")
    busy = reading + decoding / (positive(speedup, "speedup") * rows)
    return (1e6 * price / SECONDS_PER_HOUR * busy / (1 - _share(idle_share, "idle_share")))[()]


def _share(value: ArrayLike, name: str) -> np.ndarray:
    array = between(0, value, 1, name)
    if (array == 1).any():
        raise ValueError(f"{name}=1 leaves nothing: it must be below 1")
    return array
