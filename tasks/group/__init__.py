"""Communication between the ranks of one trial, over sockets that the ranks open themselves. Each
connection must prove that it knows the key.

Rank 0 (`leader.py`) listens and receives from the other ranks (`peers.py`), which connect to it
(`member.py`). The messages are in `wire.py`. None of this needs torch.
"""
