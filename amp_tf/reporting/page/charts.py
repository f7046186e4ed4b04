"""Charts as plain SVG. Each has its content in words for those who do not see it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from amp_tf.reporting.page.words import count, text

_WIDTH, _HEIGHT = 1000.0, 200.0


def split_bar(f16: float, float32: float, whole: float, label: str) -> str:
    """A bar of two parts, 16 bit first.

    Args:
        f16, float32: the parts.
        whole: what the full width stands for.
        label: the same in words.
    """
    first = 100 * f16 / whole if whole else 0.0
    second = 100 * float32 / whole if whole else 0.0
    return (
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{text(label)}">'
        '<rect class="rest" width="100" height="10"/>'
        f'<rect class="f16" width="{first:.3f}" height="10"/>'
        f'<rect class="float32" x="{first:.3f}" width="{second:.3f}" height="10"/></svg>'
    )


def curve(points: Sequence[Sequence[float]], label: str) -> str:
    """The loss scale over steps, on a logarithmic axis, and a mark for each look that saw new skipped steps.

    Args:
        points: (step, scale, skipped steps so far), in order.
        label: whose scale it is.
    """
    steps, scales = [point[0] for point in points], [math.log2(max(point[1], 2**-126)) for point in points]
    low, high = math.floor(min(scales)), math.ceil(max(scales))
    low, high = (low - 1, high + 1) if low == high else (low, high)
    first, last = steps[0], max(steps[-1], steps[0] + 1)

    def at(step: float, scale: float) -> tuple[float, float]:
        return _WIDTH * (step - first) / (last - first), _HEIGHT * (high - scale) / (high - low)

    path, before = [], 0.0
    marks = []
    for place, (point, scale) in enumerate(zip(points, scales, strict=True)):
        x, y = at(point[0], scale)
        path.append(f"M{x:.1f} {y:.1f}" if not place else f"H{x:.1f}V{y:.1f}")
        if point[2] > before:
            marks.append(f'<path class="skip" d="M{x:.1f} {_HEIGHT}v-14"/>')
        before = point[2]
    words = f"Loss scale of {label}: from 2^{scales[0]:.0f} to 2^{scales[-1]:.0f} over {count(last)} steps"
    return (
        f'<figure class="curve"><figcaption>{text(words)}; {count(points[-1][2])} skipped</figcaption>'
        f'<div class="axes"><span class="y high">2<sup>{high}</sup></span><span class="y low">2<sup>{low}</sup></span>'
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(words)}">'
        f'<path class="line" d="{"".join(path)}"/>{"".join(marks)}</svg>'
        f'<span class="x first">step {count(first)}</span><span class="x last">{count(last)}</span></div></figure>'
    )
