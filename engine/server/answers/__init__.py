"""What clients get: pieces of text, whole replies, events; each flavor's fields."""
