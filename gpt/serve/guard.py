"""Check the headers of a request, and limit the size of its body and the time to receive it."""

import asyncio
import base64
import ipaddress
import secrets
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gpt.serve.refusal import Refusal

MAX_BODY_BYTES = 2**20  # largest body of a request
BODY_TIMEOUT_S = 60  # seconds in which the body of a request must arrive


class Guard:
    """ASGI application that refuses requests from other web sites, or without the token.

    A page of another site could call this server from the user's browser. The browser then sends
    the site's address as `Origin`. A request is refused if its `Origin` and `Host` differ. Both are
    equal if the site's name resolves to this machine (DNS rebinding). Therefore, a server on a
    loopback address also refuses a `Host` that is neither localhost nor a loopback address.

    Args:
        app: the application that answers the other requests.
        token: the secret that each request must have, as `Authorization: Bearer TOKEN` or as the
            password that a browser asks for; None if none is needed.
        only_local: whether the server listens on a loopback address.
    """

    def __init__(self, app: ASGIApp, token: str | None, only_local: bool) -> None:
        self.app, self.token, self.only_local = app, token, only_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            Refusal: the request is not allowed.
        """
        self._check(Headers(scope=scope))
        await self.app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.only_local and not _is_local(host):
            raise Refusal(
                403, f"Host {host:.100}: expected localhost or 127.0.0.1; use the printed address"
            )
        if origin is not None and origin.partition("://")[2] != host:
            raise Refusal(403, f"Origin {origin:.100}: expected a page of {host:.100}")
        if self.token is not None and not self._has_token(headers.get("authorization", "")):
            raise Refusal(
                401,
                "expected the header Authorization: Bearer TOKEN, with the token of gpt serve",
                code="invalid_api_key",
                headers={"WWW-Authenticate": 'Basic realm="gpt serve: any name, and the token"'},
            )

    def _has_token(self, authorization: str) -> bool:
        scheme, _, secret = authorization.partition(" ")
        sent = secret.encode() if scheme.lower() == "bearer" else b""
        if scheme.lower() == "basic":
            with suppress(ValueError):
                sent = base64.b64decode(secret).partition(b":")[2]
        return secrets.compare_digest(sent, (self.token or "").encode())


def _is_local(host: str) -> bool:
    """Return whether the header `host` is localhost or a loopback address, with any port."""
    with suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    return False


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    A body that is too large is read and discarded, because most clients read the response only
    after they have sent the whole body.

    Raises:
        Refusal: the body has more than MAX_BODY_BYTES, or does not arrive in BODY_TIMEOUT_S.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= MAX_BODY_BYTES:
                    body += chunk
    except TimeoutError:
        message = f"expected the whole body within {BODY_TIMEOUT_S} s; send it again"
        raise Refusal(408, message) from None
    if size > MAX_BODY_BYTES:
        raise Refusal(413, f"the body has more than {MAX_BODY_BYTES:,} bytes; send a smaller one")
    return bytes(body)
