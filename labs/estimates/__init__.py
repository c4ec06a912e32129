"""Estimates: what the laws say for numbers that somebody types, before or without any run."""
