"""Features of an image: its pixels."""

from __future__ import annotations

from mlops import FeatureSet, Image

FEATURES = FeatureSet(label="digit", transforms=[Image("image", height=8, width=8)])
