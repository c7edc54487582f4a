"""Columns of which a value is several numbers: vectors, and images."""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import polars as pl
import pytest
from feature_tables import apply, fit
from PIL import Image as Pillow

from mlops.contract.step import BadConfigError, BadDataError
from mlops.features.applied import FittedFeatures
from mlops.features.batches import BATCH_ROWS, batches_of, rows_of
from mlops.features.feature_set import FeatureSet
from mlops.features.images import Image
from mlops.features.parity import check_parity
from mlops.features.transforms import Passthrough
from mlops.features.vectors import Vector

VECTORS = FeatureSet(label="y", transforms=[Passthrough("x"), Vector("embedding", size=3)])


def table(vectors: list[Any], dtype: pl.DataType | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "x": [float(row) for row in range(len(vectors))],
            "embedding": pl.Series(vectors, dtype=dtype or pl.List(pl.Float64)),
            "y": [row % 2 for row in range(len(vectors))],
        }
    )


@pytest.mark.parametrize(
    "dtype", [pl.List(pl.Float64), pl.List(pl.Int16), pl.Array(pl.Float32, 3)], ids=["list", "integers", "array"]
)
def test_a_vector_is_as_many_features(dtype: pl.DataType) -> None:
    rows = table([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype)
    state = json.loads(json.dumps(fit(VECTORS, rows)))
    fitted = FittedFeatures(VECTORS, state)
    assert fitted.feature_names == ["x", "embedding_0", "embedding_1", "embedding_2"]
    expected = [[0, 1, 2, 3], [1, 4, 5, 6], [2, 7, 8, 9]]
    assert fitted.apply(rows).features.tolist() == expected
    served = fitted.serve([{"x": 2.0, "embedding": [7, 8, 9]}, {"x": 0.0, "embedding": [1, 2, 3]}])
    assert served.features.tolist() == [expected[2], expected[0]]
    assert check_parity(VECTORS, rows, state) == 3


def test_a_missing_vector_is_an_error_or_said_by_a_feature() -> None:
    rows = table([[1, 2, 3], None, [7, 8, 9]])
    with pytest.raises(BadDataError, match=r"Vector\('embedding'\): 1 of 3 values are missing"):
        fit(VECTORS, rows)
    told = FeatureSet(label="y", transforms=[Vector("embedding", size=3, missing="indicator")])
    assert apply(told, rows, fit(told, rows)).features.tolist() == [[1, 2, 3, 0], [0, 0, 0, 1], [7, 8, 9, 0]]
    all_missing = rows.with_columns(embedding=pl.lit(None, pl.List(pl.Float64)))
    assert apply(told, all_missing, fit(told, rows)).features[:, 3].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1, 2, 3], [4, 5], [6, 7]], "2 of 3 vectors do not have 3 numbers, the first has 2"),
        ([[1, 2, 3], [4, 5], [6, 7, 8, 9]], "2 of 3 vectors do not have 3 numbers"),
        ([[1, 2, 3], [], [6, 7, 8]], "1 of 3 vectors do not have 3 numbers, the first has 0"),
        ([[1, 2, 3], [4, None, 6], [6, 7, 8]], "feature 'embedding_1' is nan in 1 of 3 rows"),
    ],
)
def test_a_vector_that_is_none_is_named(vectors: list[Any], message: str) -> None:
    """Broken: numbers of one row would be taken for another's."""
    rows = table(vectors)
    with pytest.raises(BadDataError, match=message):
        apply(VECTORS, rows, fit(VECTORS, rows))


def test_another_column_than_one_of_vectors_is_refused() -> None:
    for column in (pl.Series(["a"]), pl.Series([1.0]), pl.Series([["a"]])):
        with pytest.raises(BadConfigError, match="not a vector of numbers"):
            fit(VECTORS, pl.DataFrame({"x": [1.0], "embedding": column, "y": [1]}))


def png(pixels: Any, dtype: Any = np.uint8) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(np.asarray(pixels, dtype)).save(buffer, "PNG")
    return buffer.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """The head of a grey picture of so many pixels, without the pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def pictures(*files: bytes | None) -> pl.DataFrame:
    return pl.DataFrame({"picture": pl.Series(files, dtype=pl.Binary), "y": [0] * len(files)})


GREY = FeatureSet(label="y", transforms=[Image("picture", height=2, width=3)])


def test_an_image_is_its_pixels_by_channel_and_row() -> None:
    grey = np.arange(6).reshape(2, 3) * 51
    colour = np.stack([grey, 255 - grey, grey // 2], axis=2)
    rows = pictures(png(grey), png(grey[::-1]))
    state = fit(GREY, rows)
    found = apply(GREY, rows, state).features
    np.testing.assert_array_equal(found[0].reshape(2, 3), (grey / 255).astype(np.float32))
    np.testing.assert_array_equal(found[1].reshape(2, 3), (grey[::-1] / 255).astype(np.float32))
    assert FittedFeatures(GREY, state).serve({"picture": png(grey)}).features.tolist() == found[:1].tolist()
    assert check_parity(GREY, rows, state) == 2
    coloured = FeatureSet(label="y", transforms=[Image("picture", height=2, width=3, channels=3)])
    rows = pictures(png(colour), png(grey))
    found = apply(coloured, rows, fit(coloured, rows)).features.reshape(2, 3, 2, 3)
    np.testing.assert_array_equal(found[0], (colour.transpose(2, 0, 1) / 255).astype(np.float32))
    np.testing.assert_array_equal(found[1], np.stack([(grey / 255).astype(np.float32)] * 3))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"GIF89a, or so", "the 13 bytes at place 1 of its batch are no image"),
        (b"", "the 0 bytes at place 1 of its batch are no image"),
        (png(np.zeros((2, 3)))[:45], "the 45 bytes at place 1 of its batch are no image"),
        (
            png(np.zeros((3, 2))),
            "the image at place 1 of its batch has 2 x 3 pixels, not 3 x 2; bring them to one size",
        ),
        (png_of_size(9_000, 9_000), "the image at place 1 of its batch has 9000 x 9000 pixels, not 3 x 2"),
        (png_of_size(60_000, 60_000), "at place 1 of its batch are no image: DecompressionBombError"),
        (png(np.full((2, 3), 300), np.uint16), "at place 1 of its batch has pixels of mode I;16, whose values are not"),
    ],
    ids=["no image", "empty", "cut", "size", "large", "very large", "16 bits"],
)
def test_bytes_that_are_no_such_image_are_named(file: bytes, message: str) -> None:
    rows = pictures(png(np.zeros((2, 3))), file)
    with pytest.raises(BadDataError, match=message):
        apply(GREY, rows, fit(GREY, rows))


def test_wide_rows_come_in_small_batches() -> None:
    """Broken: a batch of 131,072 photos would be tens of gigabytes."""
    assert rows_of(6) == BATCH_ROWS
    assert rows_of(3 * 224 * 224) == 222
    assert rows_of(10**9) == 1
    with batches_of(pictures(*[b""] * 700), (), rows=rows_of(3 * 224 * 224)) as batches:
        assert list(batches.map(len)) == [222, 222, 222, 34]


def test_another_column_than_one_of_bytes_is_refused() -> None:
    with pytest.raises(BadConfigError, match="the column is String, not bytes of images"):
        fit(GREY, pl.DataFrame({"picture": ["cat.png"], "y": [1]}))
