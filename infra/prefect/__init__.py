"""All that speaks to Prefect: its server, task runs, events, artifacts, logs. No flow: those are in `flows/`."""
