"""PATCH bodies: JSON merge patches, and of strategic merge patches those that mean the same."""

from __future__ import annotations

from typing import Any

from cluster.errors import ApiError, unsupported
from cluster.objects import Object

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_REPLACED_LISTS = ("taints", "args", "command", "tolerations")
"""Lists that a strategic merge patch replaces, too."""


def patched(value: Object, patch: Object, content_type: str) -> Object:
    """
    The object with the patch applied.

    :raises ApiError: another kind of patch, or one that a cluster would apply in another way
    """
    if content_type not in (MERGE, STRATEGIC):
        text = f"the body of the request was in an unknown format - accepted media types include: {MERGE}, {STRATEGIC}"
        raise ApiError(415, "UnsupportedMediaType", text)
    result: Object = _merged(value, patch, content_type == STRATEGIC, "")
    return result


def _merged(value: Any, patch: Any, strategic: bool, name: str) -> Any:
    if not isinstance(patch, dict):
        if strategic and isinstance(patch, list) and patch and name not in _REPLACED_LISTS:
            raise unsupported(f"lists such as {name} in a strategic merge patch; send {MERGE}")
        return patch
    if strategic and (directives := [key for key in patch if key.startswith("$")]):
        raise unsupported(f"the directives {directives} of a strategic merge patch")
    result = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), change, strategic, key)
    return result
