"""The watcher of triggers: it sees that something happened that a schedule waits for, and makes one flow run for each event.

Each kind of trigger has a module, `journal.py` what must not be forgotten, `loop.py` the loop. How a flow run is carried out is
no matter of this room.
"""
