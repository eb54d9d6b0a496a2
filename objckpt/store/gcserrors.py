"""What an answer of Google Cloud Storage means: provider errors to ours, by HTTP status and reason.

Pure: nothing here makes requests, and message texts decide nothing (they are only quoted, for people).
"""

from __future__ import annotations

import json
from typing import Any

from google.auth import exceptions as auth

from objckpt.errors import (
    CapabilityError,
    CorruptUploadError,
    FormatError,
    ObjckptError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreFullError,
    ThrottledError,
    UnavailableError,
)
from objckpt.store.http import is_certificate_failure, retry_after_s

_THROTTLED = {"rateLimitExceeded", "userRateLimitExceeded", "tooManyRequests", "slowDown"}
_FULL = {"quotaExceeded", "storageQuotaExceeded", "insufficientStorage"}

_PERMISSION_HINT = (
    "the credentials need storage.objects.get, create, delete and list on the bucket; "
    "a requester-pays bucket needs user_project of the target"
)
_BY_STATUS: dict[int, tuple[type[StoreError] | type[FormatError], str | None]] = {
    401: (PermissionDeniedError, "log in: application default credentials are missing, expired or revoked"),
    403: (PermissionDeniedError, _PERMISSION_HINT),
    404: (ObjectNotFoundError, None),
    408: (UnavailableError, None),
    409: (StoreError, "the store names a conflict that trying again does not solve"),
    410: (UnavailableError, None),
    412: (ObjectExistsError, None),
    416: (FormatError, None),
    429: (ThrottledError, None),
    507: (StoreFullError, "free space, or raise the quota"),
}


def from_answer(
    status: int, headers: Any, body: bytes, *, now_s: float, sent_checksum: bool, **facts: Any
) -> ObjckptError:
    """Translates an answer that is not success.

    Args:
        status: HTTP status.
        headers: Its headers, by any case.
        body: The JSON that describes the error, or anything else.
        now_s: Wall time.
        sent_checksum: The request was an upload with a CRC32C.
        **facts: For the error.
    """
    reason, says = _described(body)
    facts |= {"status": status, "reason": reason, "says": says}
    message = f"the store answered {status} {reason or ''}".rstrip()
    retry_after = retry_after_s(headers.get("retry-after"), now_s=now_s)
    if reason in _THROTTLED or status == 429 or (status == 503 and retry_after is not None):
        return ThrottledError(message, retry_after_s=retry_after, **facts)
    if reason in _FULL:
        return StoreFullError(message, hint="raise the quota", **facts)
    if status == 400 and reason == "invalid" and sent_checksum:
        return CorruptUploadError(
            message, hint="the bytes were damaged on the way, or the checksum sent with them is wrong", **facts
        )
    if status == 400 and reason in ("required", "userProjectMissing"):
        return PermissionDeniedError(message, hint=_PERMISSION_HINT, **facts)
    if status in _BY_STATUS:
        kind, hint = _BY_STATUS[status]
        return kind(message, hint=hint, **facts)
    if status in (411, 501):
        return CapabilityError(message, hint="is this a Google Cloud Storage endpoint?", **facts)
    if status >= 500 or status < 200:
        return UnavailableError(message, **facts)
    return CapabilityError(message, hint="the store rejects the request as such; see the store's own words", **facts)


def from_failure(error: Exception, **facts: Any) -> ObjckptError:
    """Translates a failure of the SDK or on the wire: there was no answer."""
    message = f"the request failed: {type(error).__name__}"
    if isinstance(error, auth.GoogleAuthError):
        # The metadata service may be overloaded while all ranks start, so this is worth another try.
        return UnavailableError(
            message, hint="check the application default credentials; they are looked up with every attempt", **facts
        )
    if is_certificate_failure(error):
        return CapabilityError(
            message, hint="the server's certificate is not trusted: set ca_bundle of the target", **facts
        )
    return UnavailableError(message, **facts)


def _described(body: bytes) -> tuple[str | None, str | None]:
    """Reads reason and message of the API's error format."""
    try:
        error = json.loads(body)["error"]
        reasons = [str(each["reason"]) for each in error.get("errors", ()) if "reason" in each]
        return (reasons[0] if reasons else None), str(error.get("message", ""))[:200] or None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None
