"""Numbers and names as people read them, and safe in HTML."""

from __future__ import annotations

import html
import math

_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def text(value: object) -> str:
    """Anything, safe in HTML."""
    return html.escape(str(value), quote=True)


def path(value: str) -> str:
    """A name with scopes, safe in HTML, which breaks between them first."""
    return text(value).replace("/", "/<wbr>")


def number(value: float | None, unit: str) -> str:
    """Three digits and a unit: ``907 MFLOP``; what is not known is said to be."""
    if value is None or math.isnan(value):
        return "unknown"
    value = float(f"{value:.3g}")  # so that what is rounded up to a thousand gets the next prefix
    scale, prefix = next(((size, prefix) for size, prefix in _SCALES if abs(value) >= size), (1.0, ""))
    return f"{value / scale:.3g} {prefix}{unit}".rstrip()


def count(value: float) -> str:
    """A whole number, all of its digits."""
    return f"{value:,.0f}"


def operations(value: float | None) -> str:
    """Floating-point operations."""
    return number(value, "FLOP")


def share(part: float | None) -> str:
    """A share in per cent; one that is not all, or not nothing, is not rounded to it."""
    if part is None:
        return "unknown"
    if 0.999 <= part < 1:
        return "99.9 %" if part < 0.9999 else ">99.9 %"
    if 0 < part < 0.001:
        return "<0.1 %"
    return f"{100 * part:.3g} %" if part < 1 else "100 %"


def milliseconds(value: float | None) -> str:
    """A time of some milliseconds."""
    return "unknown" if value is None else f"{value:,.3g} ms" if value < 999.5 else f"{value:,.0f} ms"


def plain_shape(sizes: dict[str, int]) -> str:
    """Sizes by name, such as ``rows 32 × inner 64``."""
    return " × ".join(f"{name} {'unknown' if size < 0 else size}" for name, size in sizes.items())
