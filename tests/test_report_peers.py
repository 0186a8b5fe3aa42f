"""The report on agents that exchange with peers: clusters, loads, graphs, costs."""

import re

import numpy as np
import pytest
from experiment_modules import run_tool
from report_pages import (
    Page,
    json_line,
    learned_table,
    level_rows,
    link_row,
    make_row,
    num_points,
    peer_runs,
    ring_table,
    table_rows,
    write_folder,
)

from experiments.report import command, graphs, reading
from p2pjax.evaluation import statistics

CLUSTER = [0, 1, 0, 1, 2, 2, 0, 1]
SIZE = len(CLUSTER)
NOBODY = np.zeros((SIZE, SIZE), int)
TABLES = {
    "alone": NOBODY,
    "ring": ring_table(SIZE),
    "both_ways": ring_table(SIZE) + ring_table(SIZE).T,
    "learned": learned_table(CLUSTER),
}


def page_about(*folders):
    run_tool(command.Options, command.main, *folders)
    return Page((folders[0] / "report.html").read_text())


def exchanges(messages, cluster=CLUSTER):
    receiver, sender = np.nonzero(messages)
    return reading.Exchanges(
        0, np.array(cluster), receiver, sender, messages[receiver, sender]
    )


@pytest.fixture(scope="module")
def peers(tmp_path_factory):
    """The page about a folder that has everything."""
    rows, links = peer_runs(TABLES, CLUSTER)
    return page_about(write_folder(tmp_path_factory.mktemp("all"), rows, links=links))


def test_every_section(peers):
    titles = peers.texts("h2")
    for title in (
        "Accuracy of true clusters",
        "Best accuracy over messages",
        "Messages of the agents",
        "Messages inside true clusters",
        "Who received from whom",
        "Results by true cluster",
    ):
        assert title in titles
    assert "not recorded" not in "".join(peers.texts("p"))


def test_true_clusters(peers):
    found = table_rows(peers, "clusters")
    assert len(found) == 3 * len(TABLES)
    for row in found:
        own = np.flatnonzero(np.array(CLUSTER) == int(row["cluster"]))
        assert int(row["agents"]) == len(own)
        assert float(row["median"]) == pytest.approx(0.5005 + own.mean() / 100)
        assert float(row["p60"]) > float(row["median"]) > float(row["p40"])
        assert row["runs"] == "2"
    (chart,) = peers.charts("Accuracy of true clusters")
    looks = [attributes["class"] for tag, attributes, _ in chart if tag == "g"]
    assert looks == ["s0 d0", "s1 d0", "s2 d0"] * len(TABLES)
    heights = [attributes["cy"] for tag, attributes, _ in chart if tag == "circle"]
    assert len(set(heights)) == len(TABLES)  # a row per scheme


def test_agents_that_are_alike_have_no_clusters(tmp_path):
    rows, links = peer_runs({"ring": ring_table(4)}, [0] * 4)
    made = page_about(write_folder(tmp_path, rows, links=links))
    assert "Accuracy of true clusters" not in made.texts("h2")
    assert "Results by true cluster" not in made.texts("h2")
    assert len(made.charts("Graph of ring")) == 1
    assert not any("inside clusters" in text for text in made.texts("p"))


def test_best_accuracy_and_what_it_took(tmp_path):
    """Runs have their best at different evaluations; what comes later costs nothing."""
    curves = {
        "early": [[0.5, 0.9, 0.7], [0.8, 0.6, 0.7], [0.2, 0.3, 0.7]],
        "late": [[0.1, 0.2, 0.6]] * 3,
        "cheap": [[0.3, 0.3, 0.3]] * 3,
    }
    cost = {"early": 10, "late": 30, "cheap": 1}
    rows = [
        make_row(name, run, 5 * n, accuracy, messages=cost[name] * n)
        for name, runs in curves.items()
        for run, curve in enumerate(runs)
        for n, accuracy in enumerate(curve, 1)
    ]
    made = page_about(write_folder(tmp_path, rows))
    found = {row["scheme"]: row for row in table_rows(made)}
    for name, runs in curves.items():
        until = [statistics.until_top(curve, [cost[name]] * 3) for curve in runs]
        assert float(found[name]["messages to best"]) == np.median(until)
        assert float(found[name]["best"]) == np.median(np.max(runs, axis=1))
    assert float(found["early"]["messages to best"]) == 20
    (chart,) = made.charts("Best accuracy over messages")
    kinds = [attributes["class"] for tag, attributes, _ in chart if tag == "circle"]
    assert kinds == ["dot", "dot hollow", "dot"]
    names = [text for _, text in made.all("span", "name")]
    assert names[-3:] == ["early (Pareto front)", "late", "cheap (Pareto front)"]


def test_best_accuracy_needs_all_its_runs(tmp_path):
    rows = [make_row("a", run, 1, 0.5, messages=3) for run in range(3)]
    rows[1]["accuracy"] = None
    made = page_about(write_folder(tmp_path, rows))
    (row,) = table_rows(made)
    assert row["best"] == row["messages to best"] == ""
    assert not made.charts("Best accuracy over messages")


def test_messages_of_the_agents(tmp_path):
    star = np.zeros((5, 5), int)
    star[0, 1:] = star[1:, 0] = 1
    rows, links = peer_runs({"ring": ring_table(5), "star": star}, [0] * 5)
    made = page_about(write_folder(tmp_path, rows, links=links))
    (chart,) = made.charts("Messages of the agents")
    assert num_points(chart) == [5, 5]
    notes = [text for tag, _, text in chart if tag == "title"]
    assert "star, sender from below 5: 16" in notes
    assert "star, sender from below 1: 4" in notes
    gini = float(statistics.gini([4, 4, 4, 4, 16]))
    names = [text for _, text in made.all("span", "name")]
    assert f"star (Gini {gini:.3f})" in names
    assert "ring (Gini 0.000)" in names
    found = {row["scheme"]: row for row in table_rows(made)}
    assert float(found["star"]["gini"]) == pytest.approx(gini)


def test_share_inside_clusters(peers):
    (chart,) = peers.charts("Messages inside true clusters")
    # Nobody sends in `alone`, which has no share.
    assert num_points(chart) == [4, 4, 4]
    found = {row["scheme"]: row["in cluster"] for row in table_rows(peers)}
    assert found["alone"] == ""
    same = np.equal.outer(CLUSTER, CLUSTER)
    share = (TABLES["learned"] * same).sum() / TABLES["learned"].sum()
    assert float(found["learned"]) == pytest.approx(share)
    assert f"{share:.1%} of the messages inside clusters." in peers.texts("p")


def test_graph_has_agents_and_links(peers):
    (one_way,), (two_ways,) = (
        peers.charts("Graph of ring"),
        peers.charts("Graph of both_ways"),
    )
    for chart in (one_way, two_ways):
        nodes = [attributes for tag, attributes, _ in chart if tag == "circle"][:SIZE]
        assert [node["class"] for node in nodes] == [f"node s{c}" for c in CLUSTER]
        assert len({(node["cx"], node["cy"]) for node in nodes}) == SIZE
    notes = [text for tag, _, text in one_way if tag == "title"]
    assert notes[1] == (
        "agent 1, cluster 1: received 4 messages from 1 agents, sent 4 to 1"
    )
    # A line and an arrowhead of two more per link, or one line for both directions.
    assert _num_strokes(one_way) == (2 * SIZE, 3 * SIZE)
    assert _num_strokes(two_ways) == (SIZE, SIZE)
    kinds = {a["class"] for tag, a, _ in one_way if tag == "path"}
    assert kinds == {"link between w5", "link s2 w5"}  # agents 4 and 5 are alike


def _num_strokes(chart):
    """Pen down, and lines drawn."""
    paths = [a["d"] for tag, a, _ in chart if tag == "path"]
    return sum(d.count("M") for d in paths), sum(d.count("L") for d in paths)


def test_links_end_at_their_agents():
    """Lines start at the sender and point at the receiver, whatever the layout."""
    table = np.zeros((3, 3), int)
    table[2, 0] = 1  # 2 received from 0
    table[1, 2] = table[2, 1] = 1
    drawn = Page(graphs.network("t", exchanges(table, [0, 0, 0])))
    nodes = [[float(a["cx"]), float(a["cy"])] for a, _ in drawn.all("circle")]
    (path,) = [a["d"] for a, _ in drawn.all("path")]
    strokes = [
        np.array(re.findall(r"[\d.]+", part), float).reshape(-1, 2)
        for part in path.split("M")[1:]
    ]
    lines = {tuple(map(tuple, stroke.round().tolist())) for stroke in strokes}
    between = tuple(tuple(np.round(nodes[n]).tolist()) for n in (1, 2))
    assert between in lines or between[::-1] in lines
    (arrow,) = [s for s in strokes if len(s) == 2 and np.allclose(s[0], nodes[0])]
    gap = np.array(nodes[2]) - arrow[1]  # it stops at the circle
    along = np.array(nodes[2]) - nodes[0]
    assert np.linalg.norm(gap) == pytest.approx(7, abs=0.2)
    cosine = gap @ along / np.linalg.norm(gap) / np.linalg.norm(along)
    assert cosine == pytest.approx(1, abs=1e-2)


def test_same_input_same_drawing():
    found = exchanges(TABLES["learned"])
    assert graphs.network("t", found) == graphs.network("t", found)


def test_dense_graphs_show_the_strongest_links():
    found = exchanges(TABLES["learned"])
    assert not graphs.is_sparse(found)
    links = graphs.drawn_links(found)
    for agent, cluster in enumerate(CLUSTER):
        heard = [link for link in links if link.receiver == agent]
        assert len(heard) == 3
        alike = sum(other == cluster for other in CLUSTER) - 1
        inside = [link for link in heard if CLUSTER[link.sender] == cluster]
        assert len(inside) == min(3, alike)
        assert all(link.messages == 4 for link in inside)
    equal = exchanges(1 - np.eye(SIZE, dtype=int))
    assert not graphs.drawn_links(equal)  # none stands out
    many = exchanges(ring_table(201), [0] * 201)
    assert not graphs.drawn_links(many)


def test_parts_stay_in_the_drawing():
    """Two groups that never exchange, and one agent that nobody knows."""
    table = np.zeros((SIZE, SIZE), int)
    table[:3, :3] = table[3:7, 3:7] = 2
    np.fill_diagonal(table, 0)
    drawn = Page(graphs.network("t", exchanges(table)))
    places = np.array(
        [[float(a["cx"]), float(a["cy"])] for a, _ in drawn.all("circle")]
    )
    assert len(places) == SIZE
    assert (places >= 20).all()
    assert (places <= [460, 360]).all()
    apart = np.linalg.norm(places[:, None] - places, axis=2) + 99 * np.eye(SIZE)
    assert apart.min() > 14  # circles do not hide each other


@pytest.mark.parametrize("max_cells", [128, 3])
def test_heat_map(monkeypatch, max_cells):
    """Receivers are rows; where agents are too many, cells are means over pairs."""
    monkeypatch.setattr(graphs, "MAX_CELLS", max_cells)
    rng = np.random.default_rng(0)
    messages = rng.integers(0, 9, (SIZE, SIZE)) * (1 - np.eye(SIZE, dtype=int))
    found = exchanges(messages)
    order = np.argsort(CLUSTER, kind="stable")
    ordered = messages[order][:, order].astype(float)
    width = 1 if max_cells == 128 else 3
    groups = [range(n, min(n + width, SIZE)) for n in range(0, SIZE, width)]
    expected = np.array(
        [
            [
                np.mean([ordered[r, s] for r in rows for s in columns if r != s] or [0])
                for columns in groups
            ]
            for rows in groups
        ]
    )
    table = graphs.messages_by_pair(found)
    np.testing.assert_allclose(table, expected)

    drawn = Page(graphs.heat_map("t", found))
    shades = np.zeros(table.shape, int)
    for attributes, _ in drawn.all("path"):
        if attributes["class"].startswith("h"):
            for x, y, length in re.findall(r"M(\d+) (\d+)\.5h(\d+)", attributes["d"]):
                row, first = int(y), int(x)
                assert not shades[row, first : first + int(length)].any()
                shades[row, first : first + int(length)] = int(attributes["class"][1:])
    np.testing.assert_array_equal(shades, np.ceil(5 * table / table.max() - 1e-9))
    # Clusters of 3, 3 and 2 agents: borders, numbers and pairs.
    notes = [text for _, text in drawn.all("title")]
    same = np.array(CLUSTER)
    between = messages[np.ix_(same == 2, same == 0)].sum()
    assert f"cluster 2 received {between} messages from cluster 0" in notes
    assert len(notes) == 9


def test_heat_map_only_where_it_is_needed(peers):
    assert not peers.charts("Messages by pair of ring")
    assert len(peers.charts("Messages by pair of learned")) == 1
    assert len(peers.charts("Graph of learned")) == 1
    legend = [text for _, text in peers.all("span", "name")]
    assert "up to 16" in legend  # 4 messages in each of 4 rounds
    assert not peers.charts("Graph of alone")


def test_many_agents_have_a_heat_map_only(tmp_path):
    cluster = [n % 15 for n in range(300)]
    rows = [make_row("a", 0, 1, 0.5)]
    links = [link_row("a", 0, cluster, ring_table(300))]
    made = page_about(write_folder(tmp_path, rows, links=links))
    assert not made.charts("Graph of a")
    (chart,) = made.charts("Messages by pair of a")
    assert sum(tag == "path" and a["class"] == "border" for tag, a, _ in chart) == 14


def test_equal_graphs_are_drawn_once(tmp_path):
    rows, links = [], []
    for level in (20, 80):
        runs = peer_runs(
            {f"level_{level}": ring_table(SIZE)}, CLUSTER, setting={"level": level}
        )
        rows, links = rows + runs[0], links + runs[1]
    made = page_about(write_folder(tmp_path, rows, links=links))
    assert len(made.charts("Graph of level_20, level_80")) == 1
    assert sum("Graph of" in a["aria-label"] for a, _ in made.all("svg", "chart")) == 1


def test_older_folders_say_what_they_lack(tmp_path):
    made = page_about(write_folder(tmp_path, level_rows()))
    (sentence,) = [text for text in made.texts("p") if "not recorded" in text]
    assert "messages of every agent; share of messages" in sentence
    assert "who received from whom" in sentence
    for title in ("Who received from whom", "Messages of the agents"):
        assert title not in made.texts("h2")
    assert not {"gini", "in cluster"} & set(table_rows(made)[0])


def test_old_and_new_side_by_side(tmp_path):
    rows, links = peer_runs({"ring": ring_table(SIZE)}, CLUSTER)
    new = write_folder(tmp_path, rows, "new", links=links)
    old = write_folder(tmp_path, level_rows(), "old")
    made = page_about(new, old)
    assert "new: ring" in made.texts("figcaption")
    assert len(made.charts("Messages of the agents")) == 1
    found = table_rows(made)
    assert found[0]["gini"] == "0"
    assert found[-1]["gini"] == ""
    assert {row["folder"] for row in table_rows(made, "clusters")} == {"new"}


def test_names_are_escaped(tmp_path):
    strange = '<b>"&'
    rows, links = peer_runs({strange: TABLES["learned"]}, CLUSTER)
    path = write_folder(tmp_path, rows, links=links)
    made = page_about(path)
    assert strange not in (path / "report.html").read_text()
    assert made.charts(f"Messages by pair of {strange}")


BROKEN = [
    "{\n",
    '{"scheme": "a", "run": 0, "links": []}\n',
    '{"scheme": "a", "run": 0, "cluster": [0, 1]}\n',
    '{"scheme": "a", "run": 0, "cluster": [], "links": []}\n',
    '{"scheme": "a", "run": 0, "cluster": [0, 1], "links": [[0, 1]]}\n',
    '{"scheme": "a", "run": 0, "cluster": [0, 1], "links": [[0, 2, 1]]}\n',
    '{"scheme": "a", "run": 0, "cluster": [0, 1], "links": [[0, 1, -1]]}\n',
    '{"scheme": "a", "run": 0, "cluster": [0, 1], "links": [[0, 1, null]]}\n',
    '{"scheme": "a", "run": 0, "cluster": [0, 1], "links": [[0, 1, 1], [0]]}\n',
    '{"scheme": 5, "run": 0, "cluster": [0, 1], "links": []}\n',
]


@pytest.mark.parametrize("line", BROKEN)
def test_broken_links(tmp_path, capsys, line):
    rows, links = peer_runs({"a": ring_table(2)}, [0, 1])
    path = write_folder(tmp_path, rows, links=json_line(links[0]) + line)
    with pytest.raises(SystemExit) as exit_info:
        page_about(path)
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert "scheme, run, cluster and links in every line, but line 2 of" in said


def test_links_of_a_run_that_goes_on(tmp_path):
    """The last line may be cut; runs that have not ended have none."""
    rows, links = peer_runs({"a": ring_table(SIZE)}, CLUSTER)
    text = json_line(links[0]) + json_line(links[1])[:30]
    path = write_folder(tmp_path, rows, links=text, finished=False)
    made = page_about(path)
    assert len(made.charts("Graph of a")) == 1
    assert {row["runs"] for row in table_rows(made, "clusters")} == {"1"}


def test_server_has_clusters_but_no_links(tmp_path):
    rows, links = peer_runs({"server": NOBODY}, CLUSTER)
    made = page_about(write_folder(tmp_path, rows, links=links))
    assert "Who received from whom" not in made.texts("h2")
    assert "Accuracy of true clusters" in made.texts("h2")
    assert any("who received from whom" in text for text in made.texts("p"))


def test_methods_over_a_number_that_varies(tmp_path):
    """Any setting that is a number in all cases; a flag is none."""
    rows = [
        make_row(name, 0, 1, 0.5 + size / 1000, {"directed": True, "num_agents": size})
        for name in ("dpsgd", "sgp")
        for size in (10, 20, 40)
    ]
    made = page_about(write_folder(tmp_path, rows))
    (finals,) = made.charts("Final accuracy")
    assert num_points(finals) == [3, 3]
    assert "agents" in [text for tag, _, text in finals if tag == "text"]
