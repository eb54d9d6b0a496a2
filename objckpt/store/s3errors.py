"""What an S3 answer means: provider errors to ours, by HTTP status and error code.

Pure: nothing here makes requests, and message texts decide nothing (they are only quoted, for people).
"""

from __future__ import annotations

from typing import Any

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from objckpt.errors import (
    BucketNotFoundError,
    CapabilityError,
    CorruptUploadError,
    FormatError,
    InvalidInputError,
    ObjckptError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreFullError,
    ThrottledError,
    UnavailableError,
)
from objckpt.store.http import http_date_s, is_certificate_failure, retry_after_s

STALE_CREDENTIALS = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "RequestExpired"}
)
"""Credentials that were good once: a fresh session finds newer ones."""

UNKNOWN_CREDENTIALS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "UnrecognizedClientException"})
"""Wrong credentials, or credentials that were replaced while we held the old ones."""

_THROTTLED = {
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "RequestLimitExceeded",
    "TooManyRequests",
    "TooManyRequestsException",
    "Throttling",
    "ThrottlingException",
    "BandwidthLimitExceeded",
}
_FULL = {"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage"}
_DAMAGED = {
    "BadDigest",
    "InvalidDigest",
    "ChecksumMismatch",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "InvalidChecksum",
}
# 409 that asks for another try; every other 409 is surfaced.
_AGAIN = {"ConditionalRequestConflict", "OperationAborted"}
_TRANSIENT_400 = {"RequestTimeout", "IncompleteBody"}
_WRONG_REGION = {
    "PermanentRedirect",
    "TemporaryRedirect",
    "Redirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}
_UNSUPPORTED = {"NotImplemented", "MissingContentLength", "XNotImplemented"}

_CHECKSUM_HINT = (
    "the store rejects how checksums or bodies are sent; objckpt sends plain bodies with x-amz-checksum-crc32c, "
    "so upgrade the store or put another gateway before it"
)
_CREDENTIALS_HINT = "refresh the credentials where the SDK finds them; they are read again with every attempt"


def from_client_error(error: boto.ClientError, *, now_s: float, **facts: Any) -> ObjckptError:
    """Translates an answer of the store."""
    metadata = error.response.get("ResponseMetadata", {})
    details = error.response.get("Error", {})
    headers = metadata.get("HTTPHeaders", {})
    status = metadata.get("HTTPStatusCode")
    code = str(details.get("Code", ""))
    facts |= {
        "status": status,
        "code": code,
        "says": str(details.get("Message", ""))[:200] or None,
        "request_id": metadata.get("RequestId"),
    }
    message = f"the store answered {status} {code}".rstrip()
    if status is not None and status >= 300:
        retry_after = retry_after_s(headers.get("retry-after"), now_s=now_s)
        if code in _THROTTLED or status == 429 or (status == 503 and retry_after is not None):
            return ThrottledError(message, retry_after_s=retry_after, **facts)
        if code == "RequestTimeTooSkewed":
            return PermissionDeniedError(message, hint=_clock_hint(headers.get("date"), now_s), **facts)
        if code in _WRONG_REGION or status in (301, 302, 307, 308):
            region = headers.get("x-amz-bucket-region") or details.get("Region")
            return CapabilityError(message, hint=_region_hint(region), **facts)
        kind, hint = _classify(status, code)
        return kind(message, hint=hint, **facts)
    return UnavailableError(message, hint="the answer makes no sense; is this an S3 endpoint?", **facts)


def _classify(status: int, code: str) -> tuple[type[StoreError] | type[FormatError], str | None]:
    by_code = _BY_CODE.get(code)
    if by_code is not None:
        return by_code
    if code in _FULL or status == 507:
        return StoreFullError, "free space, or raise the quota"
    if code in _DAMAGED:
        return CorruptUploadError, "the bytes were damaged on the way, or the checksum sent with them is wrong"
    if code in STALE_CREDENTIALS:
        return UnavailableError, _CREDENTIALS_HINT
    if code in _AGAIN or code in _TRANSIENT_400 or status == 408:
        return UnavailableError, None
    if code in _UNSUPPORTED or status in (411, 501):
        return CapabilityError, _CHECKSUM_HINT
    if status >= 500:
        return UnavailableError, None
    return _BY_STATUS.get(status, (CapabilityError, "the store rejects the request as such; see the store's own words"))


_BY_CODE: dict[str, tuple[type[StoreError] | type[FormatError], str | None]] = {
    "NoSuchKey": (ObjectNotFoundError, None),
    "NoSuchBucket": (BucketNotFoundError, "create the bucket, correct the target's url, or replace the target"),
    "InvalidRange": (FormatError, None),
    "InvalidObjectState": (
        StoreError,
        "the object was archived: restore it (RestoreObject), and keep lifecycle rules off this prefix",
    ),
}
_BY_STATUS: dict[int, tuple[type[StoreError] | type[FormatError], str | None]] = {
    401: (PermissionDeniedError, "check the credentials"),
    403: (PermissionDeniedError, "the credentials need Get, Put, Delete and List on the target's prefix"),
    404: (ObjectNotFoundError, None),
    409: (StoreError, "the store names a conflict that trying again does not solve"),
    412: (ObjectExistsError, None),
    416: (FormatError, None),
}


def from_sdk_error(error: Exception, **facts: Any) -> ObjckptError:
    """Translates a failure inside the SDK or on the wire: there was no answer, or none that can be read."""
    message = f"the request failed: {type(error).__name__}"
    if is_credentials_failure(error):
        # The metadata service may be overloaded while all ranks start, so this is worth another try.
        return UnavailableError(message, hint="no credentials could be found: " + _CREDENTIALS_HINT, **facts)
    if is_certificate_failure(error):
        return CapabilityError(
            message, hint="the server's certificate is not trusted: set ca_bundle of the target", **facts
        )
    if isinstance(error, _WIRE):
        return UnavailableError(f"{message}: {_reason(error)}", **facts)
    if isinstance(error, _BAD_SETTINGS):
        return InvalidInputError(message, hint=f"check the target's settings: {str(error)[:200]}", **facts)
    return UnavailableError(message, says=str(error)[:200], hint="the answer makes no sense", **facts)


def is_credentials_failure(error: Exception) -> bool:
    """Whether the SDK's credentials chain failed, so that a new session should try again."""
    return isinstance(
        error,
        (
            boto.NoCredentialsError,
            boto.PartialCredentialsError,
            boto.CredentialRetrievalError,
            boto.MetadataRetrievalError,
            boto.TokenRetrievalError,
            boto.SSOError,
            boto.RefreshWithMFAUnsupportedError,
        ),
    )


_WIRE = (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError, HTTPError)
_BAD_SETTINGS = (
    ValueError,
    boto.NoRegionError,
    boto.ProfileNotFound,
    boto.InvalidRegionError,
    boto.ConfigParseError,
    boto.EndpointProviderError,
    boto.InvalidS3AddressingStyleError,
)


def _reason(error: Exception) -> str:
    inner = getattr(error, "kwargs", {}).get("error", error)
    return type(inner).__name__


def _clock_hint(date: str | None, now_s: float) -> str:
    server_s = http_date_s(date)
    if server_s is None:
        return "this machine's clock and the store's differ too much: set the clock (NTP)"
    return f"this machine's clock is {now_s - server_s:+.0f} s off the store's: set the clock (NTP)"


def _region_hint(region: str | None) -> str:
    if region:
        return f"the bucket is in region {region}: set region and endpoint_url of the target accordingly"
    return "the bucket is elsewhere: check region and endpoint_url of the target"
