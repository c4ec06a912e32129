"""EmptyPools: pools of a chosen size, opened one after the other, each proven to be empty before anything is counted.

    pool of 8     –  ·  ·  ·  ·  ·  ·  ·     –: the null block, never used; 7 are usable
    canary        –  c  c  ·  ·  ·  ·  ·     a token longer than one block: it can hit, and fits where a prompt does
    emptied       –  ·  ·  ·  ·  ·  ·  ·     once more: what the canary leaves would be in the way

Where eviction is what a lab counts, a block too many changes the count.
"""

from __future__ import annotations

from typing import Any, Mapping

from labs.protocol import LabSession
from labs.series import prove_cold
from labs.targets.base import Target, TargetInfo
from labs.workload import TokenIds, repeated_prompts


class EmptyPools:
    """Opens targets of one session.

    info  of the target: its model's sizes
    cold  whether every pool was proven to be empty until now
    """

    def __init__(self, session: LabSession) -> None:
        probe = session.open_target(num_gpu_blocks=2)
        self.info: TargetInfo = probe.info
        probe.close()
        self.cold = True
        self._session = session
        self._canary_id = self.info.vocab_size - 1

    def prompts(self, count: int, num_tokens: int, seed: int) -> tuple[TokenIds, ...]:
        """Random prompts that share nothing with each other, nor with the canary."""
        return repeated_prompts(self._canary_id, seed, count, num_tokens, 1)

    def open(self, engine_fields: Mapping[str, Any], num_usable: int) -> Target:
        """A target with so many usable blocks, all of them empty."""
        target = self._session.open_target(**engine_fields, num_gpu_blocks=num_usable + 1)
        self.empty(target)
        return target

    def empty(self, target: Target) -> None:
        """Forget all, and the canary that proves it."""
        proven = prove_cold(self._session, target, (self._canary_id,) * (target.info.unit_size + 1))
        # Whatever that said, or the canary would stay.
        self.cold = target.reset() and proven and self.cold
