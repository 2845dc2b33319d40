"""Serves an experiment's checkpoints over HTTP: the user's class, the processes that answer, and
how they switch to a better model.

It reads the state and never writes it. FastAPI and uvicorn are imported only by the answering
processes (`replica`).
"""
