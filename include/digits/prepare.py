"""
Write the images as a table, ``data/digits/digits.parquet``: scikit-learn's handwritten digits (UCI, Alpaydin and
Kaynak 1998), each a PNG of 8 x 8 grey pixels. ``make data`` runs it.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image
from sklearn.datasets import load_digits

DARKEST = 16
"""Of the table's pixels."""


def png(pixels: np.ndarray) -> bytes:
    """Return the file of an image, ``[8, 8]`` of 0 to 16."""
    buffer = io.BytesIO()
    Image.fromarray((pixels * 255 / DARKEST).round().astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def main(file: Path) -> None:
    digits = load_digits()
    table = pl.DataFrame({"image": list(map(png, digits.images)), "digit": digits.target.astype(np.int64)})
    file.parent.mkdir(parents=True, exist_ok=True)
    table.write_parquet(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
