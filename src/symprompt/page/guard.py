"""What keeps the page to its user: own host and origin, a token, sizes, rates, policies.

Any web site may have a browser send requests to 127.0.0.1. It does not know the token, which every
path begins with, and its name is refused as Host (DNS rebinding) and as Origin.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts and styles from here alone, and none made from text: names from data stay text."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MOST_BYTES = 64 * 1024
"""Of a request to the page."""


class Rate:
    """How many more requests may come now: so many at once, and so many a second; final."""

    def __init__(
        self, at_once: float, a_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.at_once, self.a_second, self.clock = at_once, a_second, clock
        self._left, self._seen = at_once, clock()

    def take(self) -> bool:
        """Count a request; return whether it may pass."""
        now = self.clock()
        self._left = min(self.at_once, self._left + (now - self._seen) * self.a_second)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Guard:
    """Lets the page's own requests through, and puts its policies on every answer; final.

    Args:
        app: gets paths without the token.
        token: the first part of every path.
        port: where the page is served.
        most: bytes of one request.
        rate: requests at once, and a second.
        model_rate: those that ask a model.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        port: int,
        *,
        most: int = MOST_BYTES,
        rate: tuple[float, float] = (400, 100),
        model_rate: tuple[float, float] = (20, 4),
    ) -> None:
        self.app, self.token = app, token.encode()
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.most, self.rate, self.model_rate = most, Rate(*rate), Rate(*model_rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it in one sentence."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        status, why = self._refusal(scope, headers)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own[name] = value
            await send(message)

        if why:
            await PlainTextResponse(why, status)(scope, receive, answer)
            return
        rest = "/" + scope["path"].split("/", 2)[2]
        scope = {**scope, "path": rest, "raw_path": rest.encode(), "root_path": ""}
        await self.app(scope, _bounded(receive, self.most), answer)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str]:
        """Return why a request is refused, and its status; an empty reason lets it pass."""
        if headers.get("host", "") not in self.hosts:
            return 421, "this is served to 127.0.0.1 and localhost alone."
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return 403, "a request from another page is refused."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "a request from another page is refused."
        parts = scope["path"].split("/", 2)
        if len(parts) < 3 or not secrets.compare_digest(parts[1].encode(), self.token):
            return 403, "the address lacks its token; take the one that was printed."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 12 or int(length) > self.most:
            return 413, f"the request is larger than {self.most} bytes."
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "GET and POST alone are answered."
        if not self.rate.take() or (scope["method"] == "POST" and not self.model_rate.take()):
            return 429, "too many requests at once; wait a moment."
        return 200, ""


def _bounded(receive: Receive, most: int) -> Receive:
    """Return a request's body no further than it may be long, whatever its headers say."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return message if seen <= most else {"type": "http.disconnect"}

    return bounded
