"""All that uses MLflow: recorder, a session's end, a training's calls. No decision needs it."""
