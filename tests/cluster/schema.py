"""Bodies against the OpenAPI schema of Kubernetes 1.34: an unknown field or a wrong type is refused, always."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from cluster import errors
from cluster.objects import Object

VERSION = "1.34.0"
_SCHEMAS = f"kubernetes-json-schema/v{VERSION}-local-strict"


def parse(body: bytes) -> Object:
    """
    The JSON object in a request; a null is an absent field, a field given twice a mistake.

    :raises ApiError: it is none
    """
    try:
        value = json.loads(body, object_pairs_hook=_object)
    except ValueError as error:
        raise errors.bad_request(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise errors.bad_request("the body is not a JSON object")
    return value


def parse_patch(body: bytes) -> Object:
    """As ``parse``, but here a null removes a field."""
    value = json.loads(body)
    if not isinstance(value, dict):
        raise errors.bad_request("the patch is not a JSON object")
    return value


def check(value: Object, kind: str, api_version: str) -> None:
    """
    Refuse what does not decode as this kind.

    :raises ApiError: a wrong kind, an unknown field, a wrong type
    """
    if (given := (value.get("apiVersion"), value.get("kind"))) != (api_version, kind):
        raise errors.bad_request(
            f"the body must be apiVersion {api_version}, kind {kind}, and is {given[0]}, {given[1]}"
        )
    texts = sorted({_text(error) for error in _leaves(_validator(kind, api_version).iter_errors(value))})
    if texts:
        where = f'{kind} in version "{api_version.rpartition("/")[2]}" cannot be handled as a {kind}'
        raise errors.bad_request(f"{where}: strict decoding error: {', '.join(texts)}")


@cache
def _validator(kind: str, api_version: str) -> Any:
    group, _, version = api_version.rpartition("/")
    short = f"{group.partition('.')[0]}-{version}" if group else "meta-v1" if kind == "DeleteOptions" else version
    schema = schema_contents(f"{_SCHEMAS}/{kind.lower()}-{short}.json", VERSION)
    registry = Resource.from_contents(schema) @ _definitions()
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _definitions() -> Registry[Any]:
    return Resource.from_contents(schema_contents(f"{_SCHEMAS}/_definitions.json", VERSION)) @ Registry()


def _leaves(found: Any) -> Any:
    for error in found:
        if error.context:
            yield from _leaves(error.context)
        else:
            yield error


def _text(error: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        unknown = [name for name in error.instance if name not in known]
        return ", ".join(f'unknown field "{f"{path}.{name}" if path else name}"' for name in unknown)
    if error.validator == "required":
        return f"{path}: {error.message}"
    return f"{path}: {error.message[:200]}"


def _object(pairs: list[tuple[str, Any]]) -> Object:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError(f"duplicate field among {sorted(names)}")
    return {name: value for name, value in pairs if value is not None}
