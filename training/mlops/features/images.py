"""The transform of images. Apart from the others, for a server without images needs no library that decodes them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from PIL import Image as Decoder
from PIL import UnidentifiedImageError

from mlops.contract.step import BadDataError
from mlops.features.vectors import MultiValued

_MODES: Final = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"})
"""Pillow's modes of 8 bits and less, of which it converts each to grey or to colours."""


@dataclass(frozen=True, slots=True)
class Image(MultiValued):
    """
    The pixels of an image, from its file's bytes (PNG, JPEG and what else Pillow reads), 0 to 1.

    A model gets them as ``[N, channels * height * width]``, by channel and row:
    ``pixels.reshape(-1, channels, height, width)``.

    :param channels: 1 for grey, 3 for red, green and blue; other modes are converted
    """

    column: str
    height: int
    width: int
    channels: Literal[1, 3] = 1
    missing: Literal["error", "indicator"] = "error"

    @property
    def num_features(self) -> int:
        return self.channels * self.height * self.width

    def check(self, schema: Mapping[str, pl.DataType]) -> None:
        dtype = schema[self.column]
        if dtype not in (pl.Binary, pl.Null):
            raise self.bad_config(f"the column is {dtype}, not bytes of images")

    def decode(self, values: pl.Series) -> npt.NDArray[np.float32]:
        pixels = np.empty((len(values), self.channels, self.height, self.width), np.uint8)
        for place, data in enumerate(values):
            image = self._opened(data, place)
            converted = np.asarray(image.convert("L" if self.channels == 1 else "RGB"))
            pixels[place] = converted.reshape(self.height, self.width, self.channels).transpose(2, 0, 1)
        return (pixels.reshape(len(values), -1) / np.float32(255)).astype(np.float32)

    def _opened(self, data: bytes, place: int) -> Decoder.Image:
        try:
            image = Decoder.open(io.BytesIO(data))
        except (UnidentifiedImageError, Decoder.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
            raise self._no_image(data, place, error) from error
        # Before its pixels are decoded: a small file may have any number of them.
        if image.size != (self.width, self.height):
            raise self.bad_data(
                f"the image at place {place} of its batch has {image.width} x {image.height} pixels, not {self.width} "
                f"x {self.height}; bring them to one size in ingest.transform"
            )
        if image.mode not in _MODES:
            raise self.bad_data(
                f"the image at place {place} of its batch has pixels of mode {image.mode}, whose values are not 0 to "
                "255; convert such images in ingest.transform, or take the numbers as a Vector"
            )
        try:
            image.load()
        except (OSError, SyntaxError, ValueError) as error:
            raise self._no_image(data, place, error) from error
        return image

    def _no_image(self, data: bytes, place: int, error: Exception) -> BadDataError:
        return self.bad_data(
            f"the {len(data)} bytes at place {place} of its batch are no image: {type(error).__name__}: {error}"
        )
