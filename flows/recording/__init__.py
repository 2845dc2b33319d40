"""Following the log into MLflow (runs, report, model) and Prefect (events, logs, artifacts)."""
