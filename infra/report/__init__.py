"""The HTML report and the pictures for pages that show no HTML. No figure is made here: those are in `figures/`."""
