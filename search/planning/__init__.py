"""What to do next, given everything that happened; and the same decisions again, simulated or verified. Nothing is kept here."""
