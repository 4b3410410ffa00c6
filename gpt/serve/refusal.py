"""The error that a request can be answered with, in OpenAI's format."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from gpt.errors import GPTError


class Refusal(GPTError):
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
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def content(self) -> dict[str, object]:
        """Return the error as a JSON object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """Return the error as a response."""
        return JSONResponse(self.content(), self.status, self.headers)
