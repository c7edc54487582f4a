"""The transform of images. Apart from the others, for a server without images needs no library that decodes them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from PIL import Image as Decoder
from PIL import UnidentifiedImageError

from mlops.features.vectors import MultiValued


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
            if image.size != (self.width, self.height):
                raise self.bad_data(
                    f"the image of row {place} has {image.width} x {image.height} pixels, not {self.width} x "
                    f"{self.height}; bring them to one size in ingest.transform"
                )
            converted = np.asarray(image.convert("L" if self.channels == 1 else "RGB"))
            pixels[place] = converted.reshape(self.height, self.width, self.channels).transpose(2, 0, 1)
        return (pixels.reshape(len(values), -1) / np.float32(255)).astype(np.float32)

    def _opened(self, data: bytes, place: int) -> Decoder.Image:
        try:
            image = Decoder.open(io.BytesIO(data))
            image.load()
            return image
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise self.bad_data(
                f"the {len(data)} bytes of row {place} are no image: {type(error).__name__}: {error}"
            ) from error
