"""Decides what to do next from all that happened; simulates and verifies it. Stores nothing."""
