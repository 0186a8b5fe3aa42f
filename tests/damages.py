"""What can be wrong with files of run folders and kept studies, and no run writes.

Tables of functions that damage the file at a path, by what they do.
"""

import json
import os

# What may stand in the place of any file.
DEEP = 100_000


def replaced_by(content):
    return lambda path: path.write_bytes(content)


def moved(make):
    """Puts something of another kind into the place of a file."""

    def damage(path):
        path.rename(path.with_name("elsewhere"))
        make(path)

    return damage


OF_ANY_FILE = {
    "binary": replaced_by(bytes(range(256)) * 20),
    "nulls": replaced_by(b"\0" * 5000),
    "utf-16": lambda path: path.write_bytes(path.read_text().encode("utf-16")),
    "deep lists": replaced_by(b"[" * DEEP),
    "deep lists, closed": replaced_by(b"[" * DEEP + b"]" * DEEP + b"\n"),
    "deep objects": replaced_by(b'{"scheme":' * DEEP),
    "a page": replaced_by(b"<html>\n<body>Not found\n"),
    "folder": moved(lambda path: path.mkdir()),
    "link": moved(lambda path: path.symlink_to("elsewhere")),
    "dangling link": moved(lambda path: path.symlink_to("nowhere")),
    "link to a device": moved(lambda path: path.symlink_to("/dev/zero")),
    "pipe": moved(os.mkfifo),
    "too large": lambda path: os.truncate(path, 2**31),  # which takes no room
}
OF_JSON = {
    "empty": replaced_by(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "null": replaced_by(b"null\n"),
    "a number": replaced_by(b"5\n"),
    "a text": replaced_by(b'"scheme"\n'),
    "an empty list": replaced_by(b"[]\n"),
    "an empty object": replaced_by(b"{}\n"),
    "foreign": replaced_by(b'{"name": "p2pjax", "rows": {"a": 1}, "round": []}\n'),
    "not a number": replaced_by(b"NaN\n"),
    "more digits than can be read": replaced_by(b"9" * 5000 + b"\n"),
}


class Text(str):
    """What stands in a row as it is, not as a text of JSON."""


DEEPLY = Text("[" * 900 + "]" * 900)
NOT_FINITE = (Text("NaN"), Text("-Infinity"), Text("1e999"))
TOO_LARGE = (*NOT_FINITE, Text("9" * 400), Text("9" * 5000))
NO_NAME = ("", "\x1b[2J", "\ud800", "a\nb", 5, None, True, [], {}, DEEPLY)
NO_SETTING = (5, None, [], "x", {"a": {}}, {"a": [[]]}, {"\x07": 1}, {"a": "\x1b"})
NO_COUNT = (-1, 0.5, "1", None, True, [1], {}, DEEPLY, *TOO_LARGE)
NO_NUMBER = ("0.5", True, [0.5], {"a": 1}, DEEPLY, *TOO_LARGE)
NO_NUMBERS = (0.5, "x", {"a": 1}, [0.5, "x"], [[0.5]] * 4, [0.5], DEEPLY)
NO_CLUSTER = (5, "x", [], ["a"] * 4, [0.5] * 4, [[0]] * 4, [0, 1], DEEPLY)
NO_LINKS = (
    *(5, None, {}, "x", [1], [[1, 2]], [[0, 1, 2, 3]], [[0, 1, "2"]], DEEPLY),
    *([[0, 4, 1]], [[-1, 0, 1]], [[0, 1, -1]], [[0, 1, 0.5]], [[0, 1, 1]] * 2),
    Text("[[0, 1, 1e999]]"),
)


def dumps(row):
    pairs = (
        f"{json.dumps(name)}: {value if isinstance(value, Text) else json.dumps(value)}"
        for name, value in row.items()
    )
    return "{" + ", ".join(pairs) + "}"


def line_becomes(make):
    """Puts what is made of the second line in its place."""

    def change(path):
        first, second, *others = path.read_text().splitlines()
        changed = [first, *make(json.loads(second)), *others]
        path.write_text("".join(f"{line}\n" for line in changed))

    return change


def with_values(**kinds):
    """The second row with another value in a column."""
    return {
        f"{name} is {value!a}"[:60]: line_becomes(
            lambda row, name=name, value=value: [dumps(row | {name: value})]
        )
        for name, values in kinds.items()
        for value in values
    }


def without(*names):
    """The second row without a column."""
    return {
        f"no {name}": line_becomes(
            lambda row, name=name: [
                dumps({key: value for key, value in row.items() if key != name})
            ]
        )
        for name in names
    }


OF_LINES = {
    "cut inside": line_becomes(lambda row: [json.dumps(row)[:50]]),
    "two in a line": line_becomes(lambda row: [json.dumps(row) * 2]),
    "a list": line_becomes(lambda row: [json.dumps([row])]),
    "a name twice": line_becomes(lambda row: [json.dumps(row)[:-1] + ', "run": 0}']),
    "a comment": line_becomes(lambda row: ["# from here on"]),
    "blank": line_becomes(lambda row: ["", json.dumps(row)]),
}
ROWS = {
    **with_values(
        scheme=NO_NAME,
        setting=NO_SETTING,
        run=NO_COUNT,
        round=NO_COUNT,
        accuracy=NO_NUMBER,
        messages=NO_NUMBER,
        bytes=NO_NUMBER,
        gini=("x", [0.5], *NOT_FINITE),
        agent_accuracy=(*NO_NUMBERS, Text("[NaN]"), Text("[1e999, 1, 1, 1]")),
        unknown=("x", {}, [["x"]], DEEPLY, *NOT_FINITE),
        **{"\x1b]0;title\x07": (1,)},
    ),
    **without("scheme", "run", "round"),
    **OF_LINES,
}
LINKS = {
    **with_values(
        scheme=NO_NAME,
        run=NO_COUNT,
        cluster=NO_CLUSTER,
        links=NO_LINKS,
        merged=(5, None, [[0, 9, 1]]),
    ),
    **without("scheme", "run", "cluster", "links"),
    **OF_LINES,
}
KEPT = {
    **with_values(
        scheme=NO_NAME,
        setting=NO_SETTING,
        run=NO_COUNT,
        round=(5, [], None, [20, 10], [10, 10], [10, "20"], [-1, 20], [10], [1, 2, 3]),
        accuracy=(0.5, [0.5], ["a", 1], [[1], [2]], None, {}, Text("[NaN, 1]"), DEEPLY),
        agent_accuracy=(0.5, ["a"], [[0.5]], {}, Text("[1e999]")),
        unchanged=(
            5,
            [],
            {"a": [1]},
            {"a": "x"},
            {"": 1},
            {"round": 1},
            {"accuracy": 1},
        ),
    ),
    **without("scheme", "run", "round"),
    **OF_LINES,
}
AGAIN = {
    "twice": line_becomes(lambda row: [json.dumps(row)] * 2),
    "round falls": line_becomes(
        lambda row: [json.dumps(row), json.dumps(row | {"round": 3})]
    ),
}
# Of what only some programs need.
NEEDED = {
    "overview": without("bytes") | with_values(bytes=(None,)),
    "connection_scores": without("accuracy", "messages")
    | with_values(setting=({"level": 5},)),
    "task_scores": with_values(
        f1_tags=(None, [0.5], True), setting=({}, {"tasks": 5, "graph": "a"})
    ),
}


def summary_becomes(change):
    """Changes what a summary says."""

    def damage(path):
        found = json.loads(path.read_text())
        change(found)
        path.write_text(json.dumps(found))

    return damage


def with_row(**values):
    """One more row of a summary."""
    row = {"scheme": "part", "setting": {}, "metric": "accuracy", "runs": 2}
    row |= {"median": 0.5, "p40": 0.4, "p60": 0.6, "mean": 0.5, "std": 0.1} | values
    row = {name: value for name, value in row.items() if value is not Ellipsis}
    return summary_becomes(lambda found: found["rows"].append(row))


SUMMARIES = {
    **{
        f"no {name}": summary_becomes(lambda found, name=name: found.pop(name))
        for name in ("rows", "experiment", "environment")
    },
    **{
        f"{name} is {value!a}": summary_becomes(
            lambda found, name=name, value=value: found.update({name: value})
        )
        for name, values in {
            "experiment": NO_NAME[:-1],
            "environment": (5, None, [1], "x", {"jax": {"a": 1}}, {"jax": "\x1b"}),
            "rows": (5, None, {"a": 1}, ["accuracy"], [[]], [None]),
        }.items()
        for value in values
    },
    **{
        f"a row has {value!a} as its {name}": with_row(**{name: value})
        for name, values in {
            "scheme": NO_NAME[:-1],
            "setting": NO_SETTING,
            "metric": NO_NAME[:-1],
            "median": ("0.5", True, [0.5], float("nan")),
            "unknown": ("x",),
        }.items()
        for value in values
    },
}
# Of what only some programs need.
NEEDED_OF_SUMMARIES = {
    "overview": {
        "no median": with_row(median=...),
        "null": with_row(median=None),
        "bars": with_row(p40=0.55),
    },
    "keep": {
        "a list": with_row(metric="agent_accuracy"),
        "a text": with_row(metric="scheme"),
    },
    "tables": {
        "no jax": summary_becomes(lambda found: found["environment"].pop("jax"))
    },
}


# Of the ledger: whole texts, and what may stand in the place of a side.
LEDGERS = {
    "deep lists": "a = " + "[" * DEEP,
    "deep names": '[[claim]]\n"part"' + ".minus" * 5000 + " = 1\n",
    "no claims": "claim = 3\n",
    "claims of numbers": "claim = [1, 2]\n",
    "other tables": "[other]\na = 3\n",
    "a study of a number": "study = { a = 3 }\n",
    "not finite": '[study."toy.good"]\nrounds = 20\ncore_hours = nan\n',
    "a date": '[study."toy.good"]\nrounds = 2026-01-01\ncore_hours = 1\n',
    "a switch": '[study."toy.good"]\nrounds = true\ncore_hours = 1\n',
}
SIDES = (
    *("3", '"part"', "{ scheme = 3 }", "{ best_of = [] }", "{ best_of = [3] }"),
    *('{ scheme = "part", agent = 99 }', '{ scheme = "part", agent = -1 }'),
    *('{ scheme = "part", until = "x" }', '{ scheme = "part", at = 0.5 }'),
    *('{ scheme = "part", metric = "run" }', '{ scheme = "part", setting = 3 }'),
    *('{ scheme = "part", metric = "agent_accuracy" }', '{ value = "x" }'),
    *('{ scheme = "part", minus = 3 }', '{ scheme = "part", setting = { a = [1] } }'),
    *('{ which_of = ["part", "nothing"], key = "level" }', "{ value = inf }"),
    "{ minus = " * 300 + "3" + " }" * 300,
)


def with_side(text):
    """Puts another left side into the first part of the ledger."""

    def change(path):
        path.write_text(path.read_text().replace('{ scheme = "part" }', text))

    return change
