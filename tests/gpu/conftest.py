"""What these tests share with those of the system."""

from __future__ import annotations

from tests.system.conftest import desk, prefect_of_session, shared_prefect

__all__ = ["desk", "prefect_of_session", "shared_prefect"]
