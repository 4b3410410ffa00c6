"""Error responses in OpenAI's format."""

import logging
from collections.abc import Mapping

from starlette.exceptions import HTTPException

from gpt.errors import GPTError

log = logging.getLogger(__name__)


class Refusal(HTTPException):
    """Error that is sent as the response to a request.

    Args:
        status: the HTTP status code.
        message: what was found, what was expected, what to do.
        param: the field of the request that is wrong, if it is one field.
        code: OpenAI's code of the error, such as `model_not_found`.
        headers: headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": param, "code": code}
        self.content = {"error": error}


def refusal_of(error: Exception) -> Refusal:
    """Return the response to a request that failed with `error`. Log unexpected errors."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, GPTError):
        return Refusal(500, str(error))
    log.error("internal error: %r", error, exc_info=log.isEnabledFor(logging.DEBUG) and error)
    return Refusal(500, f"internal error: {type(error).__name__}")
