"""What GET /metrics shows, in each engine's own names."""
