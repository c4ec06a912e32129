"""TargetFacts: the few words that tell one record's target from another's."""

from __future__ import annotations

from dataclasses import dataclass

from labcli.record import ResultRecord


@dataclass(frozen=True)
class TargetFacts:
    """None where the record does not say, as for a bench that runs no model, or a server of its precision."""

    kind: str  # "engine", "sim", "vllm", …; "none" for a bench without an engine
    gpu: str | None  # whose time the simulated target computes, as typed
    model: str | None
    dtype: str | None
    device: str | None
    version: str | None = None  # of a server
    address: str | None = None  # of a server, without a password
    is_labcli: bool = False  # a server of our own, in the flavor that `kind` names

    @classmethod
    def of(cls, record: ResultRecord) -> TargetFacts:
        """From the first engine the lab opened, or from the settings it was given."""
        target = record.target
        opened = (target.get("opened") or [None])[0]
        found = opened or {**(target.get("engine_config") or {}), **({"dtype": target["dtype"]} if "dtype" in target else {})}
        model, dtype, device = (_text_or_none(found.get(name)) for name in ("model", "dtype", "device"))
        gpu, settings = _text_or_none(target.get("gpu")), found.get("config")
        if not isinstance(settings, dict) or "address" not in settings:
            return cls(target["kind"], gpu, model, dtype, device)
        version, address = (_text_or_none(settings.get(name)) for name in ("version", "address"))
        return cls(target["kind"], gpu, model, None, None, version, address, settings.get("is_labcli") is True)

    @property
    def is_server(self) -> bool:
        return self.address is not None

    @property
    def words(self) -> str:
        """ "engine smollm2 bfloat16 cpu", "sim llama-3-8b bfloat16 h100-sxm", "vllm 0.32.0 smollm2", "no engine"."""
        if self.kind == "none":
            return "no engine"
        if self.is_server:
            server = f"labcli serve ({self.kind})" if self.is_labcli else self.kind
            return " ".join(part for part in (server, None if self.is_labcli else self.version, self.model) if part)
        where = self.gpu or (None if self.device == "none" else self.device)
        return " ".join(part for part in (self.kind, self.model, self.dtype, where) if part)


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
