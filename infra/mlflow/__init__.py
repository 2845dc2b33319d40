"""All that speaks to MLflow: the recorder, the end of a session, a training's own calls. Nothing reads MLflow to decide."""
