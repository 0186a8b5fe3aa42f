"""What a figure in a run folder shows, read from its SVG file."""

import re

GRID = "#b0b0b0"


def assert_drawn(folder, name, *texts, num_lines=None):
    """The figure is there as PNG and SVG, with these texts and so many lines.

    Args:
      folder: of the run.
      name: of the figure.
      *texts: labels, titles and entries of legends that it must have.
      num_lines: colours of lines in its axes; not looked at if None.
    """
    assert (folder / f"{name}.png").stat().st_size > 5000
    svg = (folder / f"{name}.svg").read_text()
    # Glyphs are drawn as paths; what they spell is a comment before them.
    assert set(texts) <= set(re.findall(r"<!-- (.*?) -->", svg))
    if num_lines is not None:
        clipped = r'<path d="[^"]*" clip-path="[^"]*" style="fill: none; stroke: (#\w+)'
        assert len(set(re.findall(clipped, svg)) - {GRID}) == num_lines
