"""exact_route: a route for the methods that it names and no others."""

from __future__ import annotations

from typing import Any, Awaitable, Callable

from starlette.requests import Request
from starlette.routing import Route


def exact_route(path: str, endpoint: Callable[[Request], Awaitable[Any]], *methods: str) -> Route:
    """GET if no method is named, and no HEAD beside it: starlette would add it, and the real servers have none."""
    methods = methods or ("GET",)
    route = Route(path, endpoint, methods=methods)
    route.methods = set(methods)
    return route
