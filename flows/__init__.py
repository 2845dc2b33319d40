"""Prefect flows: short loops that carry out the coordinator's instructions. No decision is made
here.
"""
