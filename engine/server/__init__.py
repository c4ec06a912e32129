"""The engine as an OpenAI-compatible server: HTTP outside, one engine on one thread inside."""
