"""Presentation of an experiment: the live view in the terminal, figures, the report, exports for
other tools. Reads history only.
"""
