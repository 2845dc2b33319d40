"""Adapters to the outside world, one room for each part of it. Nothing is decided here: `search/`
decides.

Rooms import only rooms below them. The order is in `tests/unit/test_import_rules.py`, a picture of
it in docs/architecture.md.
"""
