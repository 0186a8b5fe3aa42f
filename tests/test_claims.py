"""The ledger of claims, the rule that judges them, and what is kept for it."""

import ast
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import experiment_modules
import numpy as np
import pytest
from experiment_modules import run_tool
from scipy import stats

from experiments.claims import (
    evidence,
    figure,
    ledger,
    method_pages,
    outcomes,
    page,
    rule,
    training,
    verdicts,
)
from experiments.claims.__main__ import Options, main
from experiments.engine import reading
from experiments.keep import __main__ as keep
from experiments.keep import kept_study as keeping
from p2pjax.types import InputError

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
CLAIMS = {
    "Bouchra Pilet, Frey, Taiani 2021": 51,
    "Ioste, Finger": 14,
    "Corinzia, Buhmann 2019": 13,
    "Leleu, Cerisara 2020": 5,
    "Sajina 2025": 57,
    "Gaucher, Dieuleveut, Hendrikx 2025": 3,
    "He, Karimireddy, Jaggi 2022": 2,
    "Wu, Chen, Ling 2023": 3,
    "Koloskova, Stich, Jaggi 2019": 1,
    "Vogels, He, Koloskova, Lin, Karimireddy, Stich, Jaggi 2021": 4,
    "Lin, Karimireddy, Stich, Jaggi 2021": 1,
    "Takezawa, Bao, Niwa, Sato, Yamada 2023": 3,
    "Takezawa, Sato, Bao, Niwa, Yamada 2023": 3,
    "de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires, Sharma 2023": 2,
    "Zhu et al. 2026": 4,
    "Liu, Lin, Koloskova, Stich 2024": 1,
    "Kirch et al. 2026": 1,
    "Takezawa, Stich 2025": 1,
}
NUM_CLAIMS = sum(CLAIMS.values())


@pytest.fixture(scope="module")
def found():
    return ledger.load(RESULTS / "claims.toml")


@pytest.fixture(scope="module")
def judged(found):
    return verdicts.judge_all(found, evidence.load(RESULTS), outcomes.load(RESULTS))


class TestLedger:
    def test_all_claims_are_there(self, found):
        assert Counter(claim.source for claim in found.claims) == CLAIMS
        assert len({claim.id for claim in found.claims}) == NUM_CLAIMS

    def test_each_that_is_not_run_names_what_would_test_it(self, judged):
        """A flagfile where there is one, else what is missing."""
        experiments = "|".join(experiment_modules.NAMES)
        flagfiles = {
            f"{path.parents[1].name}.{path.stem}"
            for path in experiment_modules.flagfiles()
        }
        for verdict in judged:
            if verdict.name != "not run" or verdict.claim.shown_by:
                continue
            named = re.findall(rf"\b(?:{experiments})\.\w+", verdict.reason)
            assert {*named} <= flagfiles, verdict.claim.id
            assert named or "needs" in verdict.reason, verdict.claim.id

    def test_each_has_a_verdict_and_a_reason(self, judged):
        for verdict in judged:
            assert verdict.name in verdicts.NAMES
            assert verdict.reason
            if verdict.name == "not run":
                assert re.search(r"about [\d.]+ core-hours?\b", verdict.reason)

    def test_only_kept_studies_are_evidence(self, judged):
        kept = {path.name for path in RESULTS.iterdir() if path.is_dir()}
        for verdict in judged:
            assert set(verdict.studies) <= kept
            if verdict.claim.parts:
                assert (verdict.name == "not run") == (not verdict.studies)

    def test_kept_studies_are_complete_and_have_no_paths(self):
        for folder in (path for path in RESULTS.iterdir() if path.is_dir()):
            assert {path.name for path in folder.iterdir()} == {
                "run.flags",
                "runs.jsonl",
                "summary.json",
            }
            flags = (folder / "run.flags").read_text()
            assert not re.search(r"=[/~.]|data_dir|workdir|vocabulary", flags)
            rows = json.loads((folder / "summary.json").read_text())["rows"]
            assert {"scheme", "setting", "metric", "median", "runs"} <= set(rows[0])

    def test_tests_that_show_a_claim_exist(self, found):
        named = {t for c in found.claims for t in (*c.shown_by, *c.refuted_by)}
        assert named and outcomes.load(RESULTS) == dict.fromkeys(named, "passed")
        for test in named:
            path, *where = test.partition("[")[0].split("::")
            nodes = ast.parse((ROOT / path).read_text()).body
            for name in where:
                (node,) = (n for n in nodes if getattr(n, "name", None) == name)
                nodes = node.body
            assert isinstance(node, ast.FunctionDef), test

    def test_the_ceiling_or_the_majority_decides(self, judged):
        name = {verdict.claim.id: verdict.name for verdict in judged}
        for prefix in ("combination-central", "combination-local"):
            some = [verdict for id, verdict in name.items() if id.startswith(prefix)]
            assert set(some) == {"not testable here"}
        # Made-up patients stand in for the rest: neither shown nor refuted by them.
        for prefix in ("combination-mean-", "combination-exp-b", "combination-sums"):
            some = [verdict for id, verdict in name.items() if id.startswith(prefix)]
            assert some and not {*some} & {"supported", "contradicted"}
        assert name["fedcurv-senteval-fedavg-order"] == "not testable here"

    def test_nothing_is_stronger_than_its_parts(self, judged):
        for verdict in (verdict for verdict in judged if verdict.parts):
            states = {one.state for one in verdict.parts}
            if verdict.name == "supported":
                assert states == {"for"}
                assert not verdict.claim.left_out
            if verdict.name == "contradicted":
                assert "against" in states
                assert not states & {"for", "under-run"}
            if "under-run" in states:
                assert verdict.name == "under-run"


class TestPage:
    def test_is_what_would_be_written(self, judged):
        assert (ROOT / "docs" / "claims.md").read_text() == page.render(judged)

    def test_check(self, monkeypatch, capsys, tmp_path):
        monkeypatch.chdir(ROOT)
        main(Options(check=True), [])
        (tmp_path / "claims.md").write_text("Something else.\n")
        with pytest.raises(SystemExit) as exit_info:
            run_tool(Options, main, "--check", f"--docs={tmp_path}")
        assert exit_info.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_the_front_page_says_what_the_ledger_says(self, judged):
        readme = ROOT / "README.md"
        assert readme.read_text() == page.front_page(readme, judged)

    def test_pages_of_methods_say_it_too(self, judged, tmp_path):
        folder = ROOT / "docs" / "methods"
        for path, text in method_pages.filled(folder, judged).items():
            assert path.read_text() == text
        page_of = tmp_path / "one.md"
        page_of.write_text("<!-- claims of schemes: pens -->\n<!-- end of claims -->\n")
        (text,) = method_pages.filled(tmp_path, judged).values()
        assert "`select-rotation-pens-over-sparse`" in text
        page_of.write_text(text.replace("pens -->", "no_such -->"))
        (text,) = method_pages.filled(tmp_path, judged).values()
        assert "No claim" in text and "select-" not in text
        page_of.write_text("<!-- claims of schemes: pens -->\n")
        with pytest.raises(InputError, match="end of claims"):
            method_pages.filled(tmp_path, judged)

    def test_words(self, judged):
        assert not re.search(r"\b(not )?held\b(?!-out)", page.render(judged))

    def test_totals(self, judged):
        last = (
            page.render(judged).split("## Totals")[1].split("\n\n")[1].splitlines()[-1]
        )
        numbers = [int(cell) for cell in last.strip("| ").split(" | ")[1:]]
        assert numbers[-1] == sum(numbers[:-1]) == NUM_CLAIMS

    def test_picture_has_a_cell_per_claim(self, judged, tmp_path):
        figure.draw(judged, tmp_path)
        assert (tmp_path / "claims.png").stat().st_size > 10_000
        cells = re.findall(r'id="patch_\d+"', (tmp_path / "claims.svg").read_text())
        assert len(cells) >= NUM_CLAIMS + len(verdicts.NAMES)

    def test_parts_of_one_claim(self, monkeypatch, capsys):
        monkeypatch.chdir(ROOT)
        main(Options(), ["partial-vsn-optimum-80"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1 + 24  # three levels, four times, two readings
        with pytest.raises(InputError, match="No claims are called no-such-claim"):
            main(Options(), ["no-such-claim"])


def test_a_changed_value_changes_a_verdict(found, judged, tmp_path):
    copied = tmp_path / "results"
    shutil.copytree(RESULTS, copied)
    for name in ("vsn.level", "vsn.level_standardized"):
        path = copied / name / "runs.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["scheme"] == "level_80":
                line["accuracy"] = [value + 0.2 for value in line["accuracy"]]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = {verdict.claim.id: verdict.name for verdict in judged}
    after = {
        verdict.claim.id: verdict.name
        for verdict in verdicts.judge_all(
            found, evidence.load(copied), outcomes.load(copied)
        )
    }
    assert before["partial-vsn-optimum-80"] == "partly supported"
    assert after["partial-vsn-optimum-80"] == "supported"


class TestRule:
    VALUES = np.asarray([0.03, 0.01, 0.02, 0.05])

    def test_order_is_the_paired_t_test(self):
        found = rule.find(self.VALUES, "greater", 0.01)
        expected = stats.ttest_1samp(self.VALUES, 0)
        assert min(found.p_for, found.p_against) == pytest.approx(expected.pvalue)
        assert found.p_for < found.p_against
        low, high = rule.interval(found)
        assert (low, high) == pytest.approx(expected.confidence_interval(0.95))
        turned = rule.find(self.VALUES, "less", 0.01)
        assert turned.p_against == pytest.approx(found.p_for)

    @pytest.mark.parametrize(("margin", "expected"), [(0.06, "for"), (0.05, "open")])
    def test_equal_is_an_interval_inside_the_margin(self, margin, expected):
        """Mean .0275, standard error .00854, t of three degrees 3.182: .0003, .0547."""
        found = rule.find(self.VALUES, "equal", margin)
        p = min(found.p_for, found.p_against)
        assert rule.state(found, p < 0.05, "equal", margin, 0) == expected

    def test_equal_is_refuted_beyond_the_margin(self):
        found = rule.find(self.VALUES + 1, "equal", 0.9)
        assert found.p_against < 0.05 < found.p_for

    @pytest.mark.parametrize(
        ("number", "margin", "source_runs", "expected"),
        [
            (0.05, 0.1, None, "for"),
            (0.05, 0.02, None, "open"),  # the interval is wider: it says too little
            (0.06, 0.1, None, "against"),
            (0.06, 0.1, 1, "for"),  # a single draw of the source may lie there
        ],
    )
    def test_number(self, number, margin, source_runs, expected):
        differences = self.VALUES - number
        found = rule.find(differences, "number", margin, 0, source_runs)
        assert (
            rule.state(found, found.p_against < 0.05, "number", margin, 0) == expected
        )

    def test_without_spread(self):
        found = rule.find([2.0, 2.0, 2.0], "number", 0.01)
        assert (found.error, found.p_against) == (0, 0)
        exact = rule.find([0.0, 0.0, 0.0], "number", 0.01)
        assert rule.state(exact, False, "number", 0.01, 0) == "for"

    def test_holm_by_hand(self):
        # .01 < .05 / 3; .03 is not below .05 / 2, and .04 is not asked any more.
        significant, levels = rule.holm([0.04, 0.01, 0.03])
        assert significant == [False, True, False]
        assert levels == pytest.approx([0.025, 0.05 / 3, 0.025])
        significant, levels = rule.holm([0.04, 0.01, 0.02])
        assert significant == [True, True, True]
        assert levels == pytest.approx([0.05, 0.05 / 3, 0.025])

    def test_intervals_say_what_the_tests_say(self):
        rng = np.random.default_rng(0)
        findings = [
            rule.find(rng.normal(shift, 1, 8), "greater", 0.01)
            for shift in (0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8)
        ]
        p = [min(found.p_for, found.p_against) for found in findings]
        for found, is_clear, level in zip(findings, *rule.holm(p), strict=True):
            low, high = rule.interval(found, level)
            assert is_clear == (low > 0 or high < 0)


CLAIM = """
[[claim]]
id = "c"
source = "s"
place = "p"
statement = "t"
kind = "order"
metric = "accuracy"
setting = ""
printed = ""
needs = ""
"""
PART = """
[[claim.part]]
study = "a.b"
is = "greater"
left = { scheme = "x" }
right = { scheme = "y" }
"""
STUDY = '[study."a.b"]\nrounds = 4\ncore_hours = 1\n'
NOISE = np.asarray([0.0, 0.001, -0.001, 0.002])


def write_study(folder, schemes, rounds=(1, 2, 3, 4), name="a.b"):
    """A kept study: final accuracies of every run by scheme, or whole curves."""
    (folder / name).mkdir(parents=True)
    lines = []
    for scheme, runs in schemes.items():
        for run, value in enumerate(runs):
            curve = list(value) if np.ndim(value) else [float(value)] * len(rounds)
            lines.append(
                {"scheme": scheme, "setting": {}, "run": run, "round": list(rounds)}
                | {"accuracy": curve}
            )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / name / "runs.jsonl").write_text(text)


def verdict_of(folder, text):
    (folder / "claims.toml").write_text(text)
    (verdict,) = verdicts.judge_all(
        ledger.load(folder / "claims.toml"),
        evidence.load(folder),
        {"t": "passed", "u": "passed", "fails": "failed"},
    )
    return verdict


READINGS = (
    '[[claim.reading]]\nname = "r"\n[[claim.reading]]\nname = "other"\nstudies = '
)
NOT_RUN = READINGS + '{ "a.b" = "a.c" }\n'
OTHER = '[study."a.c"]\ncore_hours = 2\n'
TWO = PART.replace(
    'right = { scheme = "y" }', 'right = [{ scheme = "y" }, { scheme = "z" }]'
)


class TestVerdicts:
    @pytest.mark.parametrize(
        ("x", "text", "expected"),
        [
            (0.9 + NOISE, STUDY + CLAIM + PART, "supported"),
            (0.5 + NOISE, STUDY + CLAIM + PART, "contradicted"),
            (0.7 + 20 * NOISE, STUDY + CLAIM + PART, "inconclusive"),
            (0.9 + NOISE[:2], STUDY + CLAIM + PART, "under-run"),
            (0.75 + NOISE, STUDY + CLAIM + TWO, "partly supported"),
            (
                0.9 + NOISE,
                STUDY + CLAIM + 'left_out = "more"\n' + PART,
                "partly supported",
            ),
            (
                0.9 + NOISE,
                STUDY + CLAIM + 'unread = "own weights"\n' + PART,
                "partly supported",
            ),
            (
                0.5 + NOISE,
                STUDY + CLAIM + 'unread = "own weights"\n' + PART,
                "inconclusive",
            ),
            (0.9 + NOISE, STUDY + OTHER + CLAIM + NOT_RUN + PART, "partly supported"),
            (0.5 + NOISE, STUDY + OTHER + CLAIM + NOT_RUN + PART, "inconclusive"),
            (
                0.9 + NOISE,
                STUDY + 'other_data = "d"\n' + CLAIM + PART,
                "partly supported",
            ),
            (0.5 + NOISE, STUDY + 'other_data = "d"\n' + CLAIM + PART, "inconclusive"),
            (0.9 + NOISE, CLAIM + 'not_testable = "no data"\n', "not testable here"),
            (0.9 + NOISE, CLAIM + 'not_run = "n"\ncore_hours = 3\n', "not run"),
            (
                0.9 + NOISE,
                STUDY + OTHER + CLAIM + PART.replace("a.b", "a.c"),
                "not run",
            ),
            (0.9 + NOISE, CLAIM + 'refuted_by = "t"\n', "contradicted"),
            (0.9 + NOISE, CLAIM + 'shown_by = ["t", "u"]\n', "supported"),
            (
                0.9 + NOISE,
                CLAIM + 'shown_by = "t"\nrefuted_by = "u"\n',
                "partly supported",
            ),
            (
                0.9 + NOISE,
                CLAIM + 'shown_by = "t"\nleft_out = "the rest"\n',
                "partly supported",
            ),
            (0.9 + NOISE, CLAIM + 'shown_by = ["t", "fails"]\n', "not run"),
            (0.9 + NOISE, CLAIM + 'refuted_by = "unknown"\n', "not run"),
        ],
    )
    def test_each_can_be_reached(self, tmp_path, x, text, expected):
        flat = {"x": x, "y": 0.7 + 0 * x, "z": 0.8 + 0 * x}
        write_study(tmp_path, flat)
        assert verdict_of(tmp_path, text).name == expected

    def test_parts_for_sizes_times_and_sides(self, tmp_path):
        part = TWO + 'at = [1, "best"]\neach = { size = [10, 20, 30] }\n'
        (tmp_path / "claims.toml").write_text(STUDY + CLAIM + part)
        (claim,) = ledger.load(tmp_path / "claims.toml").claims
        assert len(claim.parts) == 2 * 2 * 3
        assert len({repr(part) for part in claim.parts}) == 12

    def test_the_best_is_picked_on_the_other_runs(self, tmp_path):
        """Run 2 is the luck of `b`; run 0 and 1 pick it, run 2 does not."""
        write_study(
            tmp_path, {"a": [0.5, 0.5, 0.5], "b": [0.4, 0.4, 0.9], "y": [0] * 3}
        )
        part = PART.replace('scheme = "x"', 'best_of = ["a", "b"]')
        (tmp_path / "claims.toml").write_text(STUDY + CLAIM + part)
        (claim,) = ledger.load(tmp_path / "claims.toml").claims
        found = evidence.sample(evidence.load(tmp_path)["a.b"], claim.parts[0])
        np.testing.assert_allclose(found.left, [0.4, 0.4, 0.5])

    def test_sides_are_subtracted_and_divided(self, tmp_path):
        write_study(tmp_path, {"x": [0.6, 0.8], "y": [0.3, 0.2]})
        side = '{ scheme = "x", minus = { scheme = "y" } }'
        ratio = '{ scheme = "x", ratio_to = { scheme = "y" } }'
        part = PART.replace('{ scheme = "x" }', side).replace(
            '{ scheme = "y" }\n', ratio
        )
        (tmp_path / "claims.toml").write_text(STUDY + CLAIM + part)
        (claim,) = ledger.load(tmp_path / "claims.toml").claims
        found = evidence.sample(evidence.load(tmp_path)["a.b"], claim.parts[0])
        np.testing.assert_allclose(found.left, [0.3, 0.6])
        np.testing.assert_allclose(found.right, [2, 4])

    def test_costs_until_the_best(self, tmp_path):
        write_study(
            tmp_path, {"x": [[0.1, 0.4, 0.3]], "y": [[0.1, 0.2, 0.3]]}, (1, 2, 3)
        )
        (tmp_path / "claims.toml").write_text(
            STUDY + CLAIM + PART + 'metric = "round"\nat = "best"\n'
        )
        (claim,) = ledger.load(tmp_path / "claims.toml").claims
        found = evidence.sample(evidence.load(tmp_path)["a.b"], claim.parts[0])
        assert (found.left, found.right) == (2, 3)

    def test_what_is_not_reached_stays_open(self, tmp_path):
        curves = {"x": [[0.1, 0.9]] * 3, "y": [[0.1, 0.9], [0.9, 0.9], [0.1, 0.1]]}
        write_study(tmp_path, curves, (1, 2))
        part = PART.replace(" }", ", until = 0.8 }") + 'metric = "round"\n'
        verdict = verdict_of(tmp_path, STUDY + CLAIM + part)
        assert verdict.name == "inconclusive"
        assert "not reached in every run" in verdict.reason

    def test_trends_are_changes_over_the_range(self, tmp_path):
        curves = [[0.1, 0.2, 0.3, 0.4], [0.1, 0.3, 0.2, 0.4], [0.0, 0.2, 0.2, 0.35]]
        write_study(tmp_path, {"x": curves})
        part = '[[claim.part]]\nstudy = "a.b"\nis = "rises"\nleft = { scheme = "x" }\n'
        part += 'over = "round"\nvalues = [1, 2, 3, 4]\n'
        (tmp_path / "claims.toml").write_text(STUDY + CLAIM + part)
        (claim,) = ledger.load(tmp_path / "claims.toml").claims
        found = evidence.sample(evidence.load(tmp_path)["a.b"], claim.parts[0])
        expected = [3 * np.polyfit(range(4), curve, 1)[0] for curve in curves]
        np.testing.assert_allclose(found.left, expected)
        assert verdict_of(tmp_path, STUDY + CLAIM + part).name == "supported"

    @pytest.mark.parametrize(
        ("rounds", "last", "data", "expected"),
        [
            (4, 0.5, 1, "supported"),  # the source's own budget
            (4, 0.5, 0.5, "under-run"),  # with fewer examples it is not
            (8, 0.5, 1, "under-run"),  # moves by .2 where .1 is seen
            (8, 0.71, 1, "supported"),
            (40, 0.72, 1, "under-run"),  # a tenth of the source's, and moves by .02
            (40, 0.705, 1, "supported"),  # has levelled off
        ],
    )
    def test_training(self, tmp_path, rounds, last, data, expected):
        """Up to .7 at three quarters, then to `last`, .1 above the other scheme."""
        shape = np.asarray([0.3, 0.6, 0.7, last])
        both = {
            name: [shape + low + noise for noise in NOISE * (low == 0)]
            for name, low in (("x", 0.0), ("y", -0.1))
        }
        write_study(tmp_path, both)
        study = STUDY.replace("= 4", f"= {rounds}") + f"data = {data}\n"
        assert verdict_of(tmp_path, study + CLAIM + PART).name == expected

    def test_one_evaluation_shows_no_movement(self):
        group = {0: {"round": [4], "accuracy": [0.5]}}
        assert training.movement(group, "accuracy", 4) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLAIM.replace("order", "odd") + PART, "kind"),
        (CLAIM, "one of part, shown_by, not_testable, not_run"),
        (CLAIM + 'not_run = "n"\n', "core_hours"),
        (CLAIM + PART, "names a.b"),
        (STUDY + CLAIM + PART.replace("greater", "better"), "needs is of greater"),
        (STUDY + CLAIM + PART + 'over = "size"\n', "needs over with"),
        (STUDY + CLAIM + PART + "ronds = 3\n", "has ronds, not one of"),
        (STUDY + CLAIM + PART + 'at = "end"\n', "needs at to be"),
        (
            STUDY + CLAIM + PART.replace('{ scheme = "y" }', "{}"),
            "one of scheme, best_of",
        ),
        (STUDY + CLAIM + PART + CLAIM + PART, "a name of its own"),
        (CLAIM + 'shown_by = "t"\nnot_run = "n"\n', "needs one of"),
        (CLAIM + 'refuted_by = "t"\nnot_testable = "n"\n', "needs one of"),
        ("claim = 3 3", "in TOML"),
    ],
)
def test_ledgers_that_cannot_be_used_are_refused(tmp_path, text, message):
    (tmp_path / "claims.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        ledger.load(tmp_path / "claims.toml")


def write_run(folder, flags, rows):
    """A finished run folder."""
    folder.mkdir()
    text = "".join(f"--{name}={value}\n" for name, value in flags.items())
    (folder / "run.flags").write_text(text)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    row = {"scheme": rows[0]["scheme"], "setting": {"size": 3}, "metric": "accuracy"}
    summary = {"experiment": "toy", "rows": [row | {"median": 0.5, "runs": 1}]}
    summary["environment"] = {"jax": "1", "devices": 1}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def rows_of(scheme, runs):
    return [
        {"scheme": scheme, "setting": {"size": 3}, "run": run, "round": t}
        | {"accuracy": 0.123456 + run + t / 10, "agent_accuracy": [t, run]}
        for run in runs
        for t in (1, 2)
    ]


FLAGS = {"seed": 0, "methods": "a", "num_runs": 2, "data_dir": "/x", "dataset": "toy"}


class TestKeep:
    def test_merges_parts(self, tmp_path):
        first = write_run(tmp_path / "1", FLAGS, rows_of("a", [0, 1]))
        more = {"num_runs": 1, "first_run": 2}
        second = write_run(tmp_path / "2", FLAGS | more, rows_of("a", [2]))
        third = write_run(
            tmp_path / "3", FLAGS | {"methods": "b,a"}, rows_of("b", [0, 1])
        )
        folder = keeping.keep(
            "toy.study", [first, second, third], tmp_path / "results", False
        )
        lines = [
            json.loads(t) for t in (folder / "runs.jsonl").read_text().splitlines()
        ]
        assert [(line["scheme"], line["run"]) for line in lines] == [
            ("a", 0),
            ("a", 1),
            ("a", 2),
            ("b", 0),
            ("b", 1),
        ]
        assert lines[1]["round"] == [1, 2]
        assert lines[1]["accuracy"] == [1.2235, 1.3235]  # five digits
        assert lines[1]["agent_accuracy"] == [2, 1]  # of the last evaluation
        assert (folder / "run.flags").read_text().splitlines() == [
            "--dataset=toy",
            "--methods=a,b",
            "--num_runs=3",
            "--seed=0",
        ]
        row = json.loads((folder / "summary.json").read_text())["rows"][0]
        assert (row["scheme"], row["runs"]) == ("a", 3)
        assert row["median"] == pytest.approx(1.323456)

    def test_runs_are_added_to_a_kept_study(self, tmp_path):
        """In two steps as in one, but for digits of the summary."""
        own = FLAGS | {"num_runs": 1}
        first = write_run(tmp_path / "1", own, rows_of("a", [0]))
        second = write_run(tmp_path / "2", own | {"first_run": 1}, rows_of("a", [1]))
        once = keeping.keep("toy.study", [first, second], tmp_path / "once", False)
        results = tmp_path / "results"
        kept = keeping.keep("toy.study", [first], results, False)
        with pytest.raises(InputError, match="is in .* and in"):
            keeping.keep("toy.study", [kept, first], results, True)
        keeping.keep("toy.study", [kept, second], results, True)
        for name in ("runs.jsonl", "run.flags"):
            assert (kept / name).read_text() == (once / name).read_text()
        numbers = [
            json.loads((folder / "summary.json").read_text())["rows"][0]["median"]
            for folder in (kept, once)
        ]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4)

    def test_a_summary_says_what_the_kept_numbers_say(self, tmp_path):
        """Of runs with more digits than are kept; a second look changes nothing."""

        def rows(scheme, agents):
            return [
                row | {"messages": 1e7 / 3, "agent_accuracy": agents}
                for row in rows_of(scheme, [0, 1])
            ]

        both = [*rows("alone", [1 / 3, 1 / 7]), *rows("together", [2 / 3, 6 / 7])]
        run = write_run(tmp_path / "1", FLAGS, both)
        folder = keeping.keep("toy.study", [run], tmp_path / "results", False)
        assert keeping.updated(folder)["rows"] == reading.summary(folder).rows
        before = (folder / "summary.json").read_text()
        keeping.update_summary(folder)
        assert (folder / "summary.json").read_text() == before
        assert "3333333.0" not in before
        assert keeping.plain(2.0**80, 7) == 2.0**80

    def test_columns_that_stay_the_same_are_said_once(self, tmp_path):
        more = {"majority": 0.1, "gini": None, "agent_accuracy": [1, 0]}
        rows = [row | more for row in rows_of("a", [0])]
        run = write_run(tmp_path / "1", FLAGS, rows)
        folder = keeping.keep("toy.study", [run], tmp_path / "results", False)
        line = json.loads((folder / "runs.jsonl").read_text())
        assert line["unchanged"]["majority"] == 0.1
        assert line["round"] == [1, 2]
        assert {"majority", "gini"}.isdisjoint(line)
        (read,) = reading.kept_runs(folder)
        assert read["majority"] == [0.1, 0.1]
        assert read["gini"] == [None, None]
        assert "unchanged" not in read
        assert [one["majority"] for one in keeping.evaluations(read)] == [0.1, 0.1]

    def test_computes_what_takes_several_runs(self, tmp_path):
        """Gains and what a target took, though no run folder has a column of them."""

        def rows(scheme, messages, agents):
            more = {"messages": messages, "class_accuracy": [0.5, None], "majority": 1}
            return [
                row | more | {"accuracy": (0.5, 0.9)[place], "agent_accuracy": agents}
                for place, row in enumerate(rows_of(scheme, [0]))
            ]

        both = [*rows("alone", 0, [0.5, 0.5]), *rows("together", 3, [0.4, 0.9])]
        flags = FLAGS | {"target_accuracy": 0.8}
        run = write_run(tmp_path / "1", flags, both)
        folder = keeping.keep("toy.study", [run], tmp_path / "results", False)
        path = folder / "summary.json"

        def found():
            every = json.loads(path.read_text())["rows"]
            return {(row["scheme"], row["metric"]): row["mean"] for row in every}

        assert found()["together", "gain_over_local"] == pytest.approx(0.15)
        assert found()["together", "share_of_agents_that_lose"] == 0.5
        assert found()["together", "gain_over_local_p10"] == pytest.approx(-0.05)
        assert found()["alone", "round_to_target"] == 2
        assert found()["alone", "majority"] == 1  # which the run's summary lacks
        assert ("alone", "gain_over_local") not in found()
        (line, _) = (folder / "runs.jsonl").read_text().splitlines()
        assert json.loads(line)["class_accuracy"] == [0.5, None]
        before, kept = path.read_text(), json.loads(path.read_text())
        few = [row for row in kept["rows"] if row["metric"] == "accuracy"]
        path.write_text(json.dumps(kept | {"rows": few}))
        results = f"--results={tmp_path / 'results'}"
        run_tool(keep.Options, keep.main, "--update", results)
        assert path.read_text() == before
        with pytest.raises(SystemExit):
            run_tool(keep.Options, keep.main, "--update", "toy.study", results)

    def test_refuses(self, tmp_path):
        results = tmp_path / "results"
        one = write_run(tmp_path / "1", FLAGS, rows_of("a", [0, 1]))
        same = write_run(tmp_path / "2", FLAGS, rows_of("a", [1]))
        other = write_run(tmp_path / "3", FLAGS | {"seed": 1}, rows_of("a", [5]))
        with pytest.raises(InputError, match=r"Run 1 of a \(size=3\) is in .* leave"):
            keeping.keep("toy.study", [one, same], results, False)
        with pytest.raises(InputError, match="leave one of them out"):
            keeping.keep("toy.study", [one, one], results, False)
        with pytest.raises(InputError, match=r"differ in --seed \(0 and 1\)"):
            keeping.keep("toy.study", [one, other], results, False)
        with pytest.raises(InputError, match="a study of toy"):
            keeping.keep("mnist.level", [one], results, False)
        assert not results.exists()
        keeping.keep("toy.study", [one], results, False)
        with pytest.raises(InputError, match="--replace"):
            keeping.keep("toy.study", [one], results, False)
        keeping.keep("toy.study", [one], results, True)
        (one / "summary.json").unlink()
        with pytest.raises(InputError, match=r"has no summary\.json"):
            keeping.keep("toy.study", [one], results, True)


class TestOutcomes:
    """Tests that the ledger names are run, and what came out is kept."""

    def test_each_kind(self, tmp_path):
        (tmp_path / "test_it.py").write_text(
            "import pytest\n"
            "def test_good(): pass\n"
            "def test_bad(): assert False\n"
            "def test_left_out(): pytest.skip('no data')\n"
        )
        names = ("good", "bad", "left_out", "missing")
        found = outcomes.run([f"test_it.py::test_{name}" for name in names], tmp_path)
        assert found == {
            "test_it.py::test_good": "passed",
            "test_it.py::test_bad": "failed",
            "test_it.py::test_left_out": "skipped",
            "test_it.py::test_missing": "failed",
        }
        assert outcomes.load(tmp_path) == {}
        outcomes.save(tmp_path, found)
        assert outcomes.load(tmp_path) == found

    @pytest.mark.parametrize("text", ["{", "[]", '{"t": "maybe"}', "[" * 100_000])
    def test_what_is_refused(self, tmp_path, text):
        (tmp_path / "tests.json").write_text(text)
        with pytest.raises(InputError, match=r"[Oo]utcomes"):
            outcomes.load(tmp_path)
