"""Runs `ray start`, without the parts that an agent's node does not use; see `own_node.py`."""

from __future__ import annotations

import sys

from regrow.infra.ray import private

if __name__ == "__main__":
    with private.lean(), private.in_own_session((), plain=False):
        private.start_node(sys.argv[1:])
