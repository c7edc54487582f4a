"""What the API answers when it refuses: Status bodies with the codes, reasons and words of a real server."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.objects import Object, Resource


class ApiError(Exception):
    """A request that is refused."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> Object:
        """The body of the answer."""
        status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": self.message, "reason": self.reason, "code": self.code}
        return status | ({"details": self.details} if self.details else {})


def _details(resource: Resource, name: str) -> Object:
    details: Object = {"name": name, "kind": resource.plural}
    return details | ({"group": resource.group} if resource.group else {})


def bad_request(message: str) -> ApiError:
    """The request makes no sense."""
    return ApiError(400, "BadRequest", message)


def unsupported(what: str) -> ApiError:
    """A cluster might do it; the stand-in does not, and says so."""
    return ApiError(400, "BadRequest", f"the stand-in cluster does not support {what}")


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """Admission refuses the object."""
    return ApiError(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', _details(resource, name))


def not_found(resource: Resource, name: str) -> ApiError:
    """There is no such object."""
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def already_exists(resource: Resource, name: str) -> ApiError:
    """There is such an object already."""
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    """Somebody else was faster, or it is another object now."""
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(resource, name))


def invalid(resource: Resource, name: str, mistakes: Sequence[tuple[str, str]]) -> ApiError:
    """The object breaks rules; each mistake is a field and what is wrong with it."""
    texts = [f"{field}: {text}" for field, text in mistakes]
    message = f'{resource.kind}.{resource.group} "{name}" is invalid: '
    if not resource.group:
        message = f'{resource.kind} "{name}" is invalid: '
    message += texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(resource, name) | {"kind": resource.kind}
    details["causes"] = [{"reason": "FieldValueInvalid", "field": field, "message": text} for field, text in mistakes]
    return ApiError(422, "Invalid", message, details)


def gone(version: int, oldest: int) -> ApiError:
    """A watch asks for changes that are no longer kept."""
    return ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")
