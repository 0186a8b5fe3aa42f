"""Sections on what taking part does to agents."""

from collections.abc import Sequence

from experiments.report import charts, comparisons, markup, measures, svg
from experiments.report.figures import ACCURACY, common_axis, figure, visible, xs
from experiments.report.reading import Folder


def scores(folders: Sequence[Folder]) -> str:
    """Accuracy before and after averaging."""
    found = [measures.score_series(one) for one in folders]
    x = common_axis([row for rows in found for _, row in rows], ACCURACY)
    title = "Before and after averaging"
    figures = []
    for folder, rows in zip(folders, found, strict=True):
        if rows:
            chart = charts.dot_plot(title, rows, x)
            figures.append(figure(folder, chart + charts.legend(rows[0][1])))
    return markup.section(
        title,
        "At the last round, of the models that agents have trained and of those that "
        "they have averaged: median over runs; bars from the 40th to the 60th "
        "percentile.",
        figures,
    )


def gains(folders: Sequence[Folder]) -> str:
    """What each agent gains over learning alone."""
    styled = charts.styled([comparisons.agent_gains(one) for one in folders])
    y = common_axis(styled, "gain in accuracy", zero=True)
    title = "Gains of the agents"
    figures = []
    for folder, lines in zip(folders, map(visible, styled), strict=True):
        if lines:
            x = svg.tight_axis("agents, least gain to most (rank)", xs(lines))
            chart = charts.line_chart(title, lines, x, y)
            figures.append(figure(folder, chart + charts.legend(lines)))
    return markup.section(
        title,
        "Accuracy of an agent less that of the same agent where none sends, at "
        "the last round: sorted in every run, then the mean over runs. Below 0 are "
        "agents that lose by taking part; agents that attack are not judged.",
        figures,
    )
