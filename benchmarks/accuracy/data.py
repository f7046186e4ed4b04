"""Real data that ships with installed packages: handwritten digits (scikit-learn) and Python's standard library."""

from __future__ import annotations

import ast
import collections
import functools
import sysconfig
from pathlib import Path

import numpy as np

TEXT_FILES = 60
ALPHABET = "".join(map(chr, range(32, 127))) + "\n"


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """1,347 images of 8 x 8 pixels in 0 … 1 to train on and 450 to test on, with labels 0 … 9."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images, labels = (images[order] / 16).astype("float32"), labels[order].astype("int32")
    return images[:1347], labels[:1347], images[1347:], labels[1347:]


@functools.cache
def sources() -> tuple[tuple[str, str], ...]:
    """Name and text of standard library modules, in alphabetical order."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))[: 2 * TEXT_FILES : 2]
    return tuple((file.stem, file.read_text(encoding="utf-8", errors="ignore")) for file in files)


@functools.cache
def characters(length: int, count: int = 3000) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Windows of source text as integers below 96, and the same windows one character on; the last sixth to test on."""
    text = "".join(source for _, source in sources())
    codes = np.array([ALPHABET.index(c) for c in text if c in ALPHABET], "int32")
    starts = np.linspace(0, len(codes) - length - 2, count).astype(int)
    x = np.stack([codes[s : s + length] for s in starts])
    y = np.stack([codes[s + 1 : s + length + 1] for s in starts])
    cut = count * 5 // 6
    order = np.random.RandomState(0).permutation(count)
    train, test = order[:cut], order[cut:]
    return x[train], y[train], x[test], y[test]


@functools.cache
def ratings(items: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs (module, identifier) and log(1 + how often the one uses the other); a sixth to test on."""
    counts = []
    for _, source in sources():
        names = (node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
        counts.append(collections.Counter(names))
    total = collections.Counter(name for count in counts for name in count)
    chosen = sorted(name for name, _ in total.most_common(items))
    pairs = np.array([(m, i) for m in range(len(counts)) for i in range(len(chosen))], "int32")
    values = np.array([np.log1p(counts[m][chosen[i]]) for m, i in pairs], "float32")
    order = np.random.RandomState(0).permutation(len(pairs))
    cut = len(pairs) * 5 // 6
    train, test = order[:cut], order[cut:]
    return pairs[train], values[train], pairs[test], values[test]
