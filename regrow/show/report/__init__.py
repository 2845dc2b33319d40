"""The HTML report, and pictures for pages that cannot show HTML. The figures are made in
`figures/`.
"""
