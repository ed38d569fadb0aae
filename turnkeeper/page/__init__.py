"""A run as one HTML file that fetches nothing and runs nothing.

`story` puts what a run's history tells in order, `document` and `conversation` write it down,
`pictures` reads the images. All text passes `markup.escape`.
"""
