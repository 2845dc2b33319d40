"""Long-running programs: the station, its page, model serving. They start and show experiments; no
experiment depends on them.
"""
