"""Peers: other engines' own functions, run beside ours for comparison, in interpreters that have them."""
