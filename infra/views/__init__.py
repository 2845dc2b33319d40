"""An experiment's history as `show`, `trials`, `compare` and `logs` print it: plain values. Nothing is drawn or written."""
