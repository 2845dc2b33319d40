"""How the ranks of one trial speak to each other: over sockets of their own, whose every connection proves that it knows the key.

Rank 0 (`leader.py`) opens the door (`door.py`) and hears the others (`circle.py`), which come in (`member.py`); what they say is
in `wire.py`. No torch is needed for any of it.
"""
