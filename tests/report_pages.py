"""Run folders written by hand, and the pages about them, parsed."""

import csv
import io
import json
from html.parser import HTMLParser

import numpy as np

from p2pjax.evaluation import statistics

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Elements as `(tag, attributes, text)`; refuses tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        for element in self._open:
            element[2] += data

    def all(self, tag, kind=""):
        return [
            (attributes, text)
            for name, attributes, text in self.elements
            if name == tag and (not kind or attributes.get("class") == kind)
        ]

    def texts(self, tag):
        return [text for _, text in self.all(tag)]

    def charts(self, title):
        """What is drawn in the charts of this title, a list of elements per chart."""
        starts = [
            number
            for number, (tag, attributes, _) in enumerate(self.elements)
            if tag == "svg" and attributes.get("class") == "chart"
        ]
        ends = [*starts, len(self.elements)][1:]
        return [
            self.elements[start:end]
            for start, end in zip(starts, ends, strict=True)
            if self.elements[start][1]["aria-label"] == title
        ]


def num_points(elements, kind="line"):
    return [
        len(attributes["points"].split())
        for tag, attributes, _ in elements
        if tag == "polyline" and attributes["class"] == kind
    ]


def make_row(scheme, run, number, accuracy, setting=None, **others):
    row = {"scheme": scheme, "setting": setting or {}, "run": run, "round": number}
    return row | {"accuracy": accuracy} | others


def level_rows(levels=(0, 50, 100), num_runs=3, num_rounds=4):
    """The final accuracy of level l in run r is 0.5 + l / 1000 + r / 100."""
    return [
        make_row(
            f"level_{level}",
            run,
            number,
            accuracy := 0.5 + level / 1000 + run / 100 - (num_rounds - number) / 10,
            {"level": level},
            messages=number if level else 0,
            bytes=1000.0 * level * number,
            agent_accuracy=[accuracy + 0.1, accuracy - 0.1, accuracy, accuracy],
        )
        for level in levels
        for run in range(num_runs)
        for number in range(1, num_rounds + 1)
    ]


def scheme_rows(names, **others):
    return [
        make_row(name, run, number, 0.5 + position / 100 + number / 10, **others)
        for position, name in enumerate(names)
        for run in (0, 1)
        for number in (1, 2)
    ]


def effect_rows(num_runs=2, num_rounds=3):
    """Agents alone, together, asynchronous, and two of six that attack."""
    made = []
    for run in range(num_runs):
        for number in range(1, num_rounds + 1):
            shared = {"messages": 3 * number, "bytes": 100.0 * number}
            together = [0.9, 0.4, 0.75, 0.8]
            made += [
                make_row(
                    *("alone", run, number, 0.65),
                    **{
                        "messages": 0,
                        "bytes": 0.0,
                        "agent_accuracy": [0.5, 0.6, 0.7, 0.8],
                    },
                ),
                make_row(
                    *("together", run, number, 0.7),
                    **{"accuracy_before": 0.65, "accuracy_after": 0.7},
                    **{"agent_accuracy": together, **shared},
                ),
                make_row(
                    *("waking", run, number, 0.6 + number / 100),
                    **{"time": 2.5 * number, "agent_accuracy": together, **shared},
                ),
                make_row(
                    *("attacked", run, number, 0.6),
                    **{"attack_success": number / 10, "num_byzantine": 2},
                    **{"from_attackers": 0.25, **shared},
                    agent_accuracy=[None, 0.4, 0.6, None, 0.6, 0.8],
                ),
            ]
    return made


def json_line(row):
    return json.dumps(row) + "\n"


def write_folder(parent, rows, name="run", *, links=None, finished=True, flags=None):
    path = parent / name
    path.mkdir()
    for file, lines in (("metrics.jsonl", rows), ("links.jsonl", links)):
        if lines is not None:
            text = lines if isinstance(lines, str) else "".join(map(json_line, lines))
            (path / file).write_text(text)
    (path / "run.flags").write_text(flags or "--seed=3\n--per_sample\n")
    if finished:
        environment = {"python": "3.99.1", "backend": "cpu"}
        summary = {"experiment": "tiny", "rows": [], "environment": environment}
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def text_to_copy(page, name):
    (text,) = [text for attributes, text in page.all("pre") if attributes["id"] == name]
    return text


def table_rows(page, name="results"):
    """A table as its CSV text has it."""
    return list(csv.DictReader(io.StringIO(text_to_copy(page, f"{name}-csv"))))


def link_row(scheme, run, cluster, messages, setting=None):
    """A row of links.jsonl from the messages of a receiver (row) from a sender."""
    receiver, sender = np.nonzero(messages)
    links = np.stack([receiver, sender, messages[receiver, sender]], axis=1)
    row = {"scheme": scheme, "setting": setting or {}, "run": run}
    return row | {"cluster": list(cluster), "links": links.tolist()}


def peer_runs(tables, cluster, *, num_runs=2, num_rounds=4, setting=None):
    """Rows of both files of runs in which agents exchange the same in every round.

    Args:
      tables: by scheme, messages of a receiver (row) from a sender in a round.
      cluster: `[N]`.
      num_runs: of each scheme; the accuracy of agent n is 0.5 + n / 100 + run / 1000 at
        the end.
      num_rounds: evaluated after each.
      setting: of all rows.
    """
    rows, links = [], []
    same = np.equal.outer(cluster, cluster)
    for scheme, table in tables.items():
        for run in range(num_runs):
            for number in range(1, num_rounds + 1):
                accuracy = 0.5 + np.arange(len(cluster)) / 100 + run / 1000
                accuracy = accuracy * number / num_rounds
                sent = table.sum(0) * number
                share = (table * same).sum() / table.sum() if table.any() else None
                rows.append(
                    make_row(
                        scheme,
                        run,
                        number,
                        accuracy.mean(),
                        setting,
                        messages=float(sent.mean()),
                        bytes=100.0 * float(sent.mean()),
                        agent_accuracy=accuracy.tolist(),
                        agent_messages=sent.tolist(),
                        in_cluster=share,
                        gini=float(statistics.gini(sent)),
                    )
                )
            links.append(link_row(scheme, run, cluster, table * num_rounds, setting))
    return rows, links


def ring_table(num_agents):
    """Everybody sends to the next agent."""
    return np.roll(np.eye(num_agents, dtype=int), 1, axis=0)


def learned_table(cluster):
    """Everybody hears everybody, those of the own cluster four times as often."""
    same = np.equal.outer(cluster, cluster).astype(int)
    return (1 + 3 * same) * (1 - np.eye(len(cluster), dtype=int))
