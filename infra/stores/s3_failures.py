"""What an S3 request's failure means: whether to retry, what caused it, and what to tell the user.

Pure: it maps exceptions to other exceptions. What is retried, and how often, is in `s3_session.py`.
No message contains a secret: of a server's answer only status, code and text are shown.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from regrow.tasks.errors import UserError


class Kind(Enum):
    """What to do about a failure."""

    TAKEN = auto()  # 412: the key is taken
    MISSING = auto()  # no such object, or no such upload
    EMPTY = auto()  # 416: a range of an empty object
    BUSY = auto()  # throttled, internal error, timeout, connection cut: retry
    AWAY = auto()  # no connection: retry; if it never worked, the address is wrong
    EXPIRED = auto()  # credentials that were valid once; they may be renewed
    REFUSED = auto()  # unknown credentials, or a wrong secret
    NONE = auto()  # no credentials found
    FORBIDDEN = auto()
    NO_BUCKET = auto()
    ELSEWHERE = auto()  # in another region
    UNCONDITIONAL = auto()  # the server does not support conditional creation
    UNUSABLE = auto()  # the address or a setting is invalid
    WRONG = auto()  # any other failure that a retry would repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed request: its kind, and a few words on what happened."""

    kind: Kind
    why: str


RETRIED = {Kind.BUSY, Kind.AWAY}
_CODES = {
    Kind.EXPIRED: "ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired",
    Kind.REFUSED: (
        "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken InvalidClientTokenId"
        " UnrecognizedClientException InvalidSecurity AuthFailure"
    ),
    Kind.FORBIDDEN: "AccessDenied AllAccessDisabled AccountProblem Forbidden",
    Kind.ELSEWHERE: (
        "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException"
    ),
    Kind.BUSY: (
        "SlowDown RequestTimeout Throttling ThrottlingException RequestLimitExceeded"
        # Damaged or truncated in transit.
        " BadDigest XAmzContentSHA256Mismatch IncompleteBody InternalError"
        # Another conditional write of this key is in progress; which of the two wins is known a
        # moment later.
        " ConditionalRequestConflict OperationAborted"
    ),
    Kind.MISSING: "NoSuchKey NoSuchUpload",
    Kind.NO_BUCKET: "NoSuchBucket",
    Kind.UNCONDITIONAL: "NotImplemented",
}
_BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
_BY_STATUS = {
    404: Kind.MISSING,
    412: Kind.TAKEN,
    416: Kind.EMPTY,
    403: Kind.FORBIDDEN,
    401: Kind.REFUSED,
    301: Kind.ELSEWHERE,
}


def failure(error: BaseException) -> Failure | None:
    """Return what an exception of a request means; None for a bug or a cancellation."""
    import aiohttp
    from botocore import exceptions as boto

    match error:
        case boto.ClientError():
            return _answered(error.response)
        case boto.NoCredentialsError() | boto.PartialCredentialsError():
            return Failure(kind=Kind.NONE, why="there are none, or not all of them")
        case (
            boto.CredentialRetrievalError()
            | boto.UnauthorizedSSOTokenError()
            | boto.SSOTokenLoadError()
        ):
            return Failure(kind=Kind.EXPIRED, why="they cannot be renewed")
        case (
            boto.ProfileNotFound()
            | boto.ConfigParseError()
            | boto.ConfigNotFound()
            | boto.InvalidRegionError()
        ):
            return Failure(kind=Kind.UNUSABLE, why=str(error))
        case boto.SSLError():
            return Failure(kind=Kind.AWAY, why="the certificate or the encryption is not accepted")
        case (
            boto.EndpointConnectionError()
            | boto.ConnectTimeoutError()
            | boto.ProxyConnectionError()
        ):
            return Failure(kind=Kind.AWAY, why="no server answers")
        case boto.ReadTimeoutError() | asyncio.TimeoutError():
            return Failure(kind=Kind.BUSY, why="no answer in time")
        case boto.HTTPClientError(kwargs={"error": OSError() | ValueError() as why}) if (
            unsent := _unsent(why)
        ):
            return unsent
        case (
            boto.HTTPClientError()
            | boto.IncompleteReadError()
            | boto.ResponseStreamingError()
            | aiohttp.ClientError()
        ):
            return Failure(kind=Kind.BUSY, why="the connection was cut")
        case boto.ParamValidationError():
            return None
        case boto.BotoCoreError() if type(error).__name__ == "ResponseParserError":
            return Failure(kind=Kind.BUSY, why="the answer is not S3's")
        case ConnectionError():
            return Failure(kind=Kind.BUSY, why="the connection was cut")
        case ValueError() if "ndpoint" in str(error):
            return Failure(kind=Kind.UNUSABLE, why=str(error))
        case _ if type(error).__module__.startswith("botocore"):
            return Failure(kind=Kind.BUSY, why=type(error).__name__)
    return None


def _unsent(why: OSError | ValueError) -> Failure | None:
    """Return what kept a request from being sent at all, None for nothing."""
    if isinstance(why, FileNotFoundError | PermissionError):
        text = f"its file of certificates cannot be read ({why.strerror})"
        return Failure(kind=Kind.UNUSABLE, why=text)
    if isinstance(why, ValueError) and "header" in str(why):  # a key that ends in a line break
        return Failure(kind=Kind.REFUSED, why=str(why))
    return None


def _answered(response: Any) -> Failure:
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = Kind.BUSY if status >= 500 or status in {408, 409, 425, 429} else Kind.WRONG
    text = f"{status} {code}" if code and code != str(status) else str(status)
    return Failure(kind=kind, why=f"{text}: {error.get('Message')}" if kind is Kind.WRONG else text)


_CORRECT = "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_MESSAGES = {
    Kind.NO_BUCKET: "{bucket} does not exist at {server}; create it, or correct the state's URL",
    Kind.FORBIDDEN: (
        "{bucket} at {server} is closed to {whose}: {why}; allow them s3:ListBucket on it, and"
        " s3:GetObject, s3:PutObject and s3:DeleteObject on its objects"
    ),
    Kind.REFUSED: f"{{server}} does not accept {{whose}} for {{bucket}}: {{why}}; {_CORRECT}",
    Kind.EXPIRED: (
        "{whose} for {bucket} at {server} have expired: {why}; renew them (AWS_SESSION_TOKEN, or"
        " AWS_PROFILE)"
    ),
    Kind.NONE: (
        f"there are no credentials for {{bucket}} at {{server}};"
        f" {_CORRECT.replace('correct', 'set')}"
    ),
    Kind.ELSEWHERE: "{bucket} is in another region: {why}; set AWS_REGION to the bucket's",
    Kind.UNCONDITIONAL: (
        "{server} cannot create an object on the condition that it is not there; use an S3 that can"
    ),
    Kind.UNUSABLE: (
        "{bucket} cannot be used: {why}; correct AWS_PROFILE, AWS_REGION, AWS_CA_BUNDLE or"
        " AWS_ENDPOINT_URL_S3"
    ),
    Kind.AWAY: (
        "no S3 at {server} for {bucket}: {why}; start that server, or correct AWS_ENDPOINT_URL_S3"
        " (or AWS_ENDPOINT_URL, or endpoint_url in the state's URL)"
    ),
}


def user_error(failed: Failure, bucket: str, endpoint: str | None, credentials: str) -> UserError:
    """Return the error that tells the user how to fix a failure which does not pass without action.

    `endpoint` None: Amazon's own. `credentials`: where they came from.
    """
    message = _MESSAGES.get(failed.kind, "{bucket} at {server} refuses: {why}")
    return UserError(
        message.format(
            bucket=f"the bucket {bucket!r}",
            server=endpoint or "Amazon S3",
            whose=f"the credentials ({credentials})",
            why=failed.why,
        )
    )
