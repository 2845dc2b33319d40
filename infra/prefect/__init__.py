"""All that uses Prefect: its server, task runs, events, artifacts, logs. Flows are in `flows/`."""
