"""Presentation of an experiment: live view, figures, report, exports. Reads history only."""
