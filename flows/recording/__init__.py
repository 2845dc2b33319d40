"""Recording an experiment in trackers: MLflow's runs, report and model, Prefect's events, logs and
artifacts. Follows the log.
"""
