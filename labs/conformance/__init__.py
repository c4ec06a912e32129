"""Ours against the real engines: what they were recorded doing, and what they do now, operation by operation."""
