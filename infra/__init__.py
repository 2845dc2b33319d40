"""Adapters to the outside world, a room for each part of it. Nothing is decided here: what to do comes from `search/`.

Rooms import downwards only; the order is in `tests/unit/test_import_rules.py`, its picture in docs/architecture.md.
"""
