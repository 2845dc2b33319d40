"""The watcher of triggers: it detects the events that schedules wait for, and makes one flow run
for each.

Each kind of trigger has a module, `journal.py` keeps the durable state, `loop.py` is the loop. How
a flow run is carried out is decided elsewhere.
"""
