"""Sections of a report: run folders in, headings with figures or tables out.

Every section takes all folders, has a figure of each that knows what it needs, on one
scale, and is empty where none does.
"""

import math
from collections.abc import Sequence

from experiments.report import (
    charts,
    comparisons,
    effects,
    graphs,
    markup,
    measures,
    svg,
)
from experiments.report.charts import Series
from experiments.report.figures import ACCURACY, card, common_axis, figure, visible, xs
from experiments.report.reading import Folder

_X_LABELS = {
    "level": "averaging level (%)",
    "group_size": "agents that average together",
    "hidden": "global hidden cells",
    "batch_size": "examples of a mini-batch",
    "num_agents": "agents",
}
_RESULTS = (
    *("folder", "scheme", "setting", "median", "p40", "p60", "mean", "std", "runs"),
    *("round", "worst decile", "best", "messages to best", "messages", "bytes"),
)
_IF_KNOWN = (  # only of folders that recorded them
    *("gini", "in cluster", *measures.MEANS),
    *comparisons.NO_GAIN,
)
_CLUSTERS = (
    *("folder", "scheme", "setting", "cluster", "agents", "median", "p40", "p60"),
    *("mean", "std", "runs"),
)


def curves(folders: Sequence[Folder]) -> str:
    """Accuracy over rounds."""
    return _over_rounds(
        folders,
        "accuracy",
        "Accuracy over rounds",
        ACCURACY,
        "Median over runs; the band is from the 40th to the 60th percentile.",
    )


def in_cluster(folders: Sequence[Folder]) -> str:
    """How many of the messages come from agents that are alike."""
    return _over_rounds(
        folders,
        "in_cluster",
        "Messages inside true clusters",
        "share of messages",
        "Share of the messages received that came from an agent of the receiver's true "
        "cluster; median over runs, band from the 40th to the 60th percentile.",
    )


def attacks(folders: Sequence[Folder]) -> str:
    """How well attackers do."""
    return _over_rounds(
        folders,
        "attack_success",
        "Success of the attack over rounds",
        "share of triggered examples",
        "Share of the test examples with the attackers' trigger that models of honest "
        "agents take for what the attackers want; median over runs, band from the 40th "
        "to the 60th percentile.",
    )


def over_time(folders: Sequence[Folder]) -> str:
    """Accuracy over simulated time."""
    styled = charts.styled([measures.over_time(one) for one in folders])
    y = common_axis(styled, ACCURACY)
    title = "Accuracy over simulated time"
    figures = []
    for folder, lines in zip(folders, map(visible, styled), strict=True):
        if lines:
            x = svg.tight_axis("simulated time", [0, *xs(lines)])
            chart = charts.line_chart(title, lines, x, y)
            figures.append(figure(folder, chart + charts.legend(lines)))
    return markup.section(
        title,
        "Of methods whose agents wake by themselves: in a unit of time each is awake "
        "once in the mean, if the method says nothing else. Medians over runs; the "
        "band is from the 40th to the 60th percentile.",
        figures,
    )


def _over_rounds(
    folders: Sequence[Folder], metric: str, title: str, y_label: str, note: str
) -> str:
    styled = charts.styled([measures.curves(one, metric) for one in folders])
    y = common_axis(styled, y_label)
    figures = []
    for folder, lines in zip(folders, map(visible, styled), strict=True):
        if lines:
            x = svg.tight_axis("rounds", [0, *xs(lines)])
            chart = charts.line_chart(title, lines, x, y)
            figures.append(figure(folder, chart + charts.legend(lines)))
    return markup.section(title, note, figures)


def finals(folders: Sequence[Folder]) -> str:
    """Final accuracy over what the study varied, or over methods."""
    styled = charts.styled([measures.finals(one) for one in folders])
    y = common_axis(styled, ACCURACY)
    title = "Final accuracy"
    figures = []
    for folder, lines in zip(folders, map(visible, styled), strict=True):
        key = measures.compared_setting(folder)
        if lines and key:
            make_axis = svg.doubling_axis if key == "group_size" else svg.tight_axis
            x = make_axis(_X_LABELS.get(key, key.replace("_", " ")), xs(lines))
            chart = charts.line_chart(title, lines, x, y, bars=True)
            figures.append(figure(folder, chart + charts.legend(lines)))
        elif lines:
            chart = charts.dot_plot(title, [(a.label, [a]) for a in lines], y)
            figures.append(figure(folder, chart))
    return markup.section(
        title,
        "At the last round: median over runs; bars from the 40th to the 60th "
        "percentile.",
        figures,
    )


def agents(folders: Sequence[Folder]) -> str:
    """How the accuracy of the agents is distributed."""
    by_rank = charts.styled(
        [
            measures.sorted_agents(one, "agent_accuracy", "agent from below")
            for one in folders
        ]
    )
    spreads = charts.styled([measures.agent_spreads(one) for one in folders])
    y = common_axis(by_rank, "accuracy of an agent")
    figures = []
    for folder, lines, rows in zip(
        folders, map(visible, by_rank), map(visible, spreads), strict=True
    ):
        if lines:
            x = svg.tight_axis("agents, worst to best (rank)", xs(lines))
            chart = charts.line_chart("Agents, worst to best", lines, x, y)
            chart += charts.legend(lines)
            chart += charts.dot_plot(
                "Median agent, worst and best tenth", [(a.label, [a]) for a in rows], y
            )
            figures.append(figure(folder, chart))
    return markup.section(
        "Accuracy of the agents",
        "At the last round: sorted in every run, then the mean over runs. Below, the "
        "dot is the median agent and the bar goes from the mean of the worst tenth to "
        "that of the best tenth of the agents, rounded up.",
        figures,
    )


def clusters(folders: Sequence[Folder]) -> str:
    """Accuracy of the agents of each true cluster."""
    found = [measures.cluster_series(one) for one in folders]
    x = common_axis([row for rows in found for _, row in rows], ACCURACY)
    figures = []
    for folder, rows in zip(folders, found, strict=True):
        if rows:
            chart = charts.dot_plot("Accuracy of true clusters", rows, x)
            own = {one.style: one for _, row in rows for one in row}
            names = [own[cluster] for cluster in sorted(own)]
            figures.append(figure(folder, chart + charts.legend(names)))
    return markup.section(
        "Accuracy of true clusters",
        "At the last round: the mean over the agents of a cluster, median over runs; "
        "bars from the 40th to the 60th percentile.",
        figures,
    )


def communication(folders: Sequence[Folder]) -> str:
    """Accuracy over bytes."""
    styled = charts.styled([measures.trails(one) for one in folders])
    all_ends = [measures.trail_ends(one) for one in folders]
    y = svg.upper_axis(
        ACCURACY,
        [p.middle for ends in all_ends for end in ends for p in end],
        [p.middle for lines in styled for one in lines for p in one.points],
    )
    figures = []
    for folder, lines, ends in zip(folders, styled, all_ends, strict=True):
        largest = max(xs(visible(lines)), default=0.0)
        if largest > 0:  # else nothing was sent, or no agent counted
            unit, name = measures.byte_unit(largest)
            x = svg.tight_axis(f"sent per agent ({name})", [0, largest / unit])
            scaled = [
                one._replace(points=charts.scaled(one.points, 1 / unit))
                for one in lines
            ]
            ends = [charts.scaled(end, 1 / unit) for end in ends]
            title = "Accuracy over bytes sent"
            chart = charts.pareto_chart(title, scaled, ends, x, y)
            figures.append(figure(folder, chart + _front_legend(lines, ends)))
    return markup.section(
        "Communication",
        "Accuracy over what an agent has sent so far, medians over runs, from where "
        "schemes begin to differ. A circle is the end of a scheme: filled on the "
        "Pareto front, where no other is as accurate for as few bytes; hollow "
        "elsewhere.",
        figures,
    )


def best(folders: Sequence[Folder]) -> str:
    """The best accuracy of a scheme and what it took to come there."""
    styled = charts.styled([measures.best_points(one) for one in folders])
    y = common_axis(styled, "best accuracy (mean over agents)")
    title = "Best accuracy over messages"
    figures = []
    for folder, lines in zip(folders, map(visible, styled), strict=True):
        if max(xs(lines), default=0.0) > 0:
            x = svg.tight_axis("messages sent per agent", [0, *xs(lines)])
            ends = [one.points for one in lines]
            trails = [one._replace(points=[]) for one in lines]
            chart = charts.pareto_chart(title, trails, ends, x, y)
            figures.append(figure(folder, chart + _front_legend(lines, ends)))
    return markup.section(
        title,
        "The best evaluation of every run and the messages that an agent had sent up "
        "to it; medians over runs. Filled circles are the Pareto front, where no other "
        "scheme is as accurate for as few messages.",
        figures,
    )


def _front_legend(lines: Sequence[Series], ends: Sequence) -> str:
    front = charts.pareto_front(ends)
    notes = [" (Pareto front)" if n in front else "" for n in range(len(lines))]
    return charts.legend(lines, notes)


def loads(folders: Sequence[Folder]) -> str:
    """Who sends how much."""
    styled = charts.styled(
        [
            measures.sorted_agents(one, "agent_messages", "sender from below")
            for one in folders
        ]
    )
    y = common_axis(styled, "messages sent", zero=True)
    title = "Messages of the agents"
    figures = []
    for folder, lines in zip(folders, map(visible, styled), strict=True):
        if max((p.high for one in lines for p in one.points), default=0.0) > 0:
            x = svg.tight_axis("agents, fewest to most (rank)", xs(lines))
            chart = charts.line_chart(title, lines, x, y)
            gini = {
                measures.label(case): measures.over_runs(case.last_rows, "gini")
                for case in folder.cases
            }
            values = [gini[one.label]["median"] for one in lines]
            notes = [f" (Gini {v:.3f})" if math.isfinite(v) else "" for v in values]
            figures.append(figure(folder, chart + charts.legend(lines, notes)))
    return markup.section(
        title,
        "Sent up to the last round: sorted in every run, then the mean over runs. The "
        "Gini coefficient, median over runs, is 0 where all send the same and near 1 "
        "where one agent sends everything.",
        figures,
    )


CHARTS = (
    *(curves, over_time, finals, effects.scores, agents, effects.gains, clusters),
    *(communication, best, loads, attacks, in_cluster),
)


def who_received_from_whom(folders: Sequence[Folder]) -> str:
    """Graphs of the first run, drawn or as heat maps."""
    figures = []
    for folder in folders:
        for names, found in measures.link_tables(folder):
            name = ", ".join(names)
            caption = f"{folder.name}: {name}" if len(folders) > 1 else name
            share = graphs.in_cluster_share(found)
            ending = graphs.cluster_legend(found)
            if ending:
                ending += f"<p>{share:.1%} of the messages inside clusters.</p>"
            drawing = graphs.network(f"Graph of {name}", found)
            if drawing and graphs.is_sparse(found):
                figures.append(card(caption, drawing + ending))
                continue
            if drawing:
                note = (
                    f"<p>Of each agent, the {graphs.NUM_STRONGEST} senders that "
                    "it received most from.</p>"
                )
                figures.append(card(caption, note + drawing + ending))
            note = "<p>Messages of a receiver from a sender, sorted by cluster.</p>"
            heat_map = graphs.heat_map(f"Messages by pair of {name}", found)
            legend = graphs.shade_legend(found)
            figures.append(card(caption, note + heat_map + legend + ending))
    return markup.section(
        "Who received from whom",
        "Over the whole first run. Colours are true clusters; links between clusters "
        "are grey, and those that carried more messages are darker. Arrows go to the "
        "receiver, plain lines both ways.",
        figures,
    )


def not_recorded(folders: Sequence[Folder]) -> str:
    """A sentence on what no folder knows; sections about it are left out."""
    cases = [case for folder in folders for case in folder.cases]
    rows = [row for case in cases for row in case.last_rows]
    missing = [
        what
        for what, is_known in (
            ("messages of every agent", any("agent_messages" in row for row in rows)),
            (
                "share of messages inside true clusters",
                any(row.get("in_cluster") is not None for row in rows),
            ),
            ("who received from whom", any(map(measures.link_tables, folders))),
        )
        if not is_known
    ]
    if not missing:
        return ""
    return (
        f"<p>Left out, because not recorded: {'; '.join(missing)}. Agents have peers "
        "and clusters only in some experiments, and older runs did not record them.</p>"
    )


def results_table(folders: Sequence[Folder]) -> str:
    """Final and best accuracies, traffic."""
    rows = [
        row | gain
        for folder in folders
        for row, gain in zip(
            measures.results(folder), comparisons.gains(folder), strict=True
        )
    ]
    known = [c for c in _IF_KNOWN if any(math.isfinite(row[c]) for row in rows)]
    return markup.copy_table(
        "results",
        "Results",
        "Accuracy over runs at the last round. Worst decile: mean over the worst tenth "
        "of the agents, rounded up. Best: highest evaluation of a run, and messages "
        "that an agent had sent by then. Messages and bytes: sent by an agent up to "
        "the last round. From best to gini and in cluster, medians over runs. Scores "
        "before and after averaging, the share of the most frequent training label in "
        "the agents' tests, examples learned from by an agent, gains over learning "
        "alone and the share of agents that lose by taking part are means, and so are "
        "simulated time, numbers of attackers, the share of merged models that are "
        "theirs and their success, "
        "accuracies balanced over classes, and of posteriors of weights their "
        "deviations, gates, divergences and the precision that a client's factor adds.",
        _columns([*_RESULTS, *known], folders),
        rows,
    )


def clusters_table(folders: Sequence[Folder]) -> str:
    """Accuracy of each true cluster."""
    rows = [row for folder in folders for row in measures.cluster_results(folder)]
    if not rows:
        return ""
    return markup.copy_table(
        "clusters",
        "Results by true cluster",
        "Mean accuracy of the agents of a cluster at the last round, over runs.",
        _columns(_CLUSTERS, folders),
        rows,
    )


def _columns(names: Sequence[str], folders: Sequence[Folder]) -> list[str]:
    return [name for name in names if name != "folder" or len(folders) > 1]
