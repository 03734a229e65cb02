"""Quality of one trial: perplexity from negative log-likelihoods per window. Pure.

One event a window: `{"event": "quality", "window": 0, "tokens": 255, "nll": 612.3}`: the window's index from 0, how
many tokens were scored in it, and the sum of their negative log-likelihoods in nats. One bad window makes the whole
bad: leaving it out would compare arms over different text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.events import finite
from harness.measure.readings import Bad
from harness.metrics import Metric
from harness.records import Value


def perplexity(metric: Metric, qualities: Sequence[Mapping[str, Any]], part: Mapping[str, Any] | None) -> Value | Bad:
    """The exponential of the mean negative log-likelihood per token, over all windows. `series`: mean of each
    window, in order, in nats per token. `part`: `workload.quality`, which says how many windows there must be.
    """
    windows: dict[int, tuple[float, int]] = {}
    for event in qualities:
        index, tokens, nll = event.get("window"), event.get("tokens"), finite(event.get("nll"))
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            return Bad(f"{metric.name}: {index!r} is no index of a window")
        wrong = _wrong(tokens, nll, event.get("nll", "missing"), part)
        if wrong:
            return Bad(f"{metric.name}: window {index}: {wrong}")
        if index in windows:
            return Bad(f"{metric.name}: window {index} was reported twice")
        windows[index] = (float(nll or 0.0), int(tokens or 0))
    count = part["windows"] if part else len(windows)
    absent = [index for index in range(max(count, 1)) if index not in windows]
    if absent or len(windows) > count:
        return Bad(f"{metric.name}: {len(windows)} windows were reported, {count} were asked for; missing {absent[:5]}")
    return _value(metric, [windows[index] for index in range(count)])


def _wrong(tokens: object, nll: float | None, written: object, part: Mapping[str, Any] | None) -> str:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens < 10**9:
        return f"{tokens!r} is no count of scored tokens"
    if part and tokens != part["window_tokens"] - 1:  # else arms would be compared over other tokens
        return f"{tokens} tokens scored in a window of {part['window_tokens']}; all but the first have to be"
    if nll is None or nll < 0:
        return f"a negative log-likelihood of {written!r} is no reading"
    return ""


def _value(metric: Metric, windows: Sequence[tuple[float, int]]) -> Value | Bad:
    mean = math.fsum(nll for nll, _ in windows) / sum(tokens for _, tokens in windows)
    if mean > 700:  # exp(709.8) is the largest that a float holds
        return Bad(f"{metric.name}: a mean of {mean:.1f} nats a token has no perplexity that a float can hold")
    return Value(value=math.exp(mean), series=tuple(nll / tokens for nll, tokens in windows))
