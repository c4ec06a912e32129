"""Refusal: why a request gets an error instead of an answer, in words that name the field and what is accepted.

    400  the request cannot be served as it stands      500  a step failed
    401  no key, or another one                         503  too many wait, or the server is shutting down
    404  no such model                                  504  it took too long
    413  the body is too big        408  the body took too long

No prompt, salt or key is ever part of a message. One token id may be: an id that is none of the vocabulary is named, as the
real servers do.
"""

from __future__ import annotations

from typing import Any

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


class Refusal(Exception):
    """One error reply.

    status         HTTP status
    param          the field at fault, where there is one
    retry_after_s  whole seconds after which another try makes sense; None: no use, or unknown
    """

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, error_type: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.error_type = error_type or _TYPES.get(status, "BadRequestError")
        self.retry_after_s = retry_after_s

    def fields(self) -> dict[str, Any]:
        """What both servers tell of an error; each wraps it in its own way."""
        return {"message": self.message, "type": self.error_type, "param": self.param, "code": self.status}


class QueueFull(Refusal):
    """Too many requests wait; vLLM's words and status, which lets load balancers try another instance."""

    def __init__(self) -> None:
        super().__init__(
            "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
            status=503,
            retry_after_s=1,
        )


def not_supported(field: str, accepted: str) -> Refusal:
    """A field that would change the answer and that this engine does not have."""
    return Refusal(f"{field} is not supported here; accepted: {accepted}", param=field)
