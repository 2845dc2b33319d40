"""How the ranks of one trial speak to each other: over sockets of their own, whose every connection proves that it knows the key.

Rank 0 opens the door (`leader.py`), the others come in (`member.py`); what they say is in `wire.py`. No torch is needed for any
of it.
"""
