"""The HTML report, and pictures for pages that cannot show HTML."""
