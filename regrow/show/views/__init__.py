"""An experiment's history for `show`, `trials`, `compare` and `logs`: plain values. Nothing is
drawn or written.
"""
