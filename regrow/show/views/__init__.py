"""An experiment's history for commands, as plain values. Nothing is drawn or written."""
