"""Prefect flows: short loops that carry out the coordinator's instructions and decide nothing."""
