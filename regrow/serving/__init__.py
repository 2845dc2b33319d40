"""An experiment's checkpoints over HTTP: the user's class, the processes that answer, and how they come by a better model.

It reads the state and never writes into it. FastAPI and uvicorn are imported by the answering processes alone (`replica`).
"""
