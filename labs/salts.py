"""Salts for a lab's requests: chosen as one should (256 bits), but from the seed, so that two runs send the same requests."""

from __future__ import annotations

import random
from base64 import urlsafe_b64encode
from typing import Iterator


def salts(seed: int | str) -> Iterator[str]:
    """Endless salts, each another one. They are not for records, logs or messages."""
    rng = random.Random(f"salts {seed}")
    while True:
        yield urlsafe_b64encode(rng.randbytes(32)).decode().rstrip("=")
