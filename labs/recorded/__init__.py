"""What the real engines did, recorded: files that labs and tests hold this engine against."""
