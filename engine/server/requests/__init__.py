"""What clients ask: bodies checked, refused by name, or turned into jobs for the engine."""
