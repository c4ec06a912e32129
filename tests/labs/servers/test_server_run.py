"""How a run uses a server is checked when it is built."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from labs.servers.server_client import SendLimits
from labs.servers.server_run import ServerRun
from tests.labs.servers.fake_server import FakeServer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("concurrency", 257),
        ("concurrency", True),
        ("rate", 0),
        ("rate", "x"),
        ("isolation", "salt"),
        ("model", ""),
        ("api_key", "ä"),
        ("limits", SendLimits(timeout_s=0)),
        ("limits", SendLimits(max_requests=True)),
        ("limits", SendLimits(max_seconds=float("nan"))),
    ],
)
def test_a_run_is_checked_and_shows_no_key(field, value):
    with pytest.raises(ConfigError, match="accepted: ") as refusal:
        FakeServer().run(**{field: value})
    assert "ä" not in str(refusal.value)
    assert "sk-1" not in repr(FakeServer().run(api_key="sk-1")) and isinstance(FakeServer().run(), ServerRun)
