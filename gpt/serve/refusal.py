"""The error that a request can be answered with, in OpenAI's format."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException


class Refusal(HTTPException):
    """A request cannot be answered.

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
