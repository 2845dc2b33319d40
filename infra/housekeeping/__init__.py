"""Removing, renaming and copying whole experiments, wherever they left something. Nothing that a running one needs."""
