"""From the parts of a claim to its verdict.

Under-run comes before all others. A claim is supported if every part is, in every
reading of what the source leaves open, and on its data; contradicted if no part is so
and one or more is clearly not so, on its data and with all readings run.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.claims import evidence, rule, training
from experiments.claims.evidence import Sample, Study
from experiments.claims.ledger import Budget, Claim, Ledger, Part
from experiments.claims.outcomes import PASSED
from experiments.claims.words import describe

NAMES = (
    "supported",
    "partly supported",
    "contradicted",
    "inconclusive",
    "under-run",
    "not testable here",
    "not run",
)


class Judged(NamedTuple):
    """One part, judged."""

    part: Part
    state: str  # for, against, open, under-run, not run
    text: str  # what was seen


class Verdict(NamedTuple):
    """What the runs say about a claim."""

    claim: Claim
    name: str
    reason: str
    studies: tuple[str, ...]  # with results
    parts: tuple[Judged, ...]


def judge_all(
    ledger: Ledger, studies: Mapping[str, Study], outcomes: Mapping[str, str]
) -> list[Verdict]:
    """A verdict for every claim.

    Args:
      ledger: all claims.
      studies: kept runs, by name.
      outcomes: of tests, by name.
    """
    return [judge(claim, ledger.budgets, studies, outcomes) for claim in ledger.claims]


def judge(
    claim: Claim,
    budgets: Mapping[str, Budget],
    studies: Mapping[str, Study],
    outcomes: Mapping[str, str],
) -> Verdict:
    """The verdict on one claim; see `judge_all`."""
    if claim.not_testable:
        return Verdict(claim, "not testable here", claim.not_testable, (), ())
    if claim.not_run:
        hours = _hours(claim.core_hours)
        return Verdict(claim, "not run", f"{claim.not_run}; {hours}", (), ())
    if claim.shown_by or claim.refuted_by:
        name, reason = judge_tests(claim, outcomes)
        return Verdict(claim, name, reason, (), ())
    parts = judge_parts(claim.parts, budgets, studies)
    name, reason = combine(claim, parts, budgets)
    if name == "not run":
        missing = sorted({part.study for part in claim.parts})
        needed = sum(budgets[study].core_hours for study in missing)
        reason += f", needs {', '.join(missing)}"
        reason += f"; {_hours(claim.core_hours or needed)}"
    if claim.note:
        reason += f". {claim.note[0].upper()}{claim.note[1:]}"
    used = {judged.part.study for judged in parts if judged.state != "not run"}
    return Verdict(claim, name, reason, tuple(sorted(used)), tuple(parts))


def judge_tests(claim: Claim, outcomes: Mapping[str, str]) -> tuple[str, str]:
    """Name of the verdict that tests give, and its reason; all have to pass."""
    for test in (*claim.shown_by, *claim.refuted_by):
        if outcomes.get(test) != PASSED:
            return "not run", f"{test} {outcomes.get(test, 'was not run')}"
    reason = claim.note or "exact"
    if claim.left_out:
        reason += f"; not tested: {claim.left_out}"
    if claim.shown_by:
        reason += f"; shown by {', '.join(claim.shown_by)}"
    if claim.refuted_by:
        reason += f"; refuted by {', '.join(claim.refuted_by)}"
    if not claim.shown_by:
        return "contradicted", reason
    is_whole = not (claim.refuted_by or claim.left_out)
    return ("supported" if is_whole else "partly supported"), reason


def judge_parts(
    parts: Sequence[Part], budgets: Mapping[str, Budget], studies: Mapping[str, Study]
) -> list[Judged]:
    """Every part of a claim, with Holm's correction over those that can be judged."""
    samples = [
        evidence.sample(studies[part.study], part) if part.study in studies else None
        for part in parts
    ]
    judged: list[Judged | None] = []
    findings = []
    for part, sample in zip(parts, samples, strict=True):
        if sample is None:
            judged.append(Judged(part, "not run", f"{describe(part)}: not run"))
            continue
        short = _short(part, sample, budgets[part.study])
        if short:
            judged.append(Judged(part, "under-run", f"{describe(part)}: {short}"))
            continue
        if not np.isfinite([sample.left, sample.right]).all():
            text = f"{describe(part)}: not reached in every run"
            judged.append(Judged(part, "open", text))
            continue
        source_runs = budgets[part.study].runs if part.rounding else None
        findings.append(
            rule.find(
                _differences(part, sample),
                part.relation,
                part.margin,
                part.rounding,
                source_runs,
            )
        )
        judged.append(None)
    tested = iter(_tested(parts, judged, findings))
    return [one if one is not None else next(tested) for one in judged]


def _tested(
    parts: Sequence[Part],
    judged: Sequence[Judged | None],
    findings: Sequence[rule.Finding],
) -> list[Judged]:
    significant, levels = rule.holm([min(f.p_for, f.p_against) for f in findings])
    left = [part for part, one in zip(parts, judged, strict=True) if one is None]
    done = []
    for part, finding, is_significant, level in zip(
        left, findings, significant, levels, strict=True
    ):
        state = rule.state(
            finding, is_significant, part.relation, part.margin, part.rounding
        )
        low, high = rule.interval(finding, level)
        if part.relation in ("less", "falls"):
            finding, (low, high) = finding._replace(mean=-finding.mean), (-high, -low)
        shift = part.value if part.relation == "number" else 0.0
        seen = [
            f"{x + shift:{'.4g' if shift else '+.3g'}}"
            for x in (finding.mean, low, high)
        ]
        runs = f"{finding.num_runs} runs"
        text = f"{describe(part)}: {seen[0]} [{seen[1]}, {seen[2]}], {runs}"
        done.append(Judged(part, state, text))
    return done


def _differences(part: Part, sample: Sample) -> np.ndarray:
    if part.relation == "number":
        return sample.left - part.value
    return sample.left - sample.right


def _short(part: Part, sample: Sample, budget: Budget) -> str:
    """Why it is under-run; "" if it is not."""
    if part.left.until is not None:
        few = len(sample.runs) < rule.MIN_RUNS
        return f"{len(sample.runs)} of at least {rule.MIN_RUNS} runs" if few else ""
    if part.relation in ("equal", "flat", "number"):
        effect = part.margin
    else:
        effect = float(_differences(part, sample).mean()) if sample.runs else 0.0
    moment = part.left
    if part.over == "round":
        moment = moment._replace(at=part.values[-1])
    return training.too_short(sample.groups, moment, budget, len(sample.runs), effect)


def combine(
    claim: Claim, parts: Sequence[Judged], budgets: Mapping[str, Budget]
) -> tuple[str, str]:
    """Name of the verdict and its reason."""
    by_state = {
        state: [judged for judged in parts if judged.state == state]
        for state in ("for", "against", "open", "under-run", "not run")
    }
    num_for, num_against = len(by_state["for"]), len(by_state["against"])
    unread = [
        reading
        for reading in claim.readings
        if all(j.state == "not run" for j in parts if j.part.reading == reading)
    ]
    unread += [claim.unread] if claim.unread else []
    counts = ", ".join(
        f"{len(found)} {_STATES[state]}" for state, found in by_state.items() if found
    )
    reason = f"{len(parts)} part{'s' if len(parts) > 1 else ''}: {counts}"
    if by_state["under-run"]:
        return "under-run", f"{reason}. {by_state['under-run'][0].text}"
    if len(by_state["not run"]) == len(parts):
        before = (
            "measured before, not kept" if claim.measured_before else "no kept runs"
        )
        return "not run", before
    if unread:
        reason += f"; not run: {', '.join(unread)}"
    data = {budgets[j.part.study].other_data for j in parts if j.state != "not run"}
    if "" not in data:
        reason += f"; on {', '.join(sorted(data))}, not the source's data"
    if claim.left_out:
        reason += f"; not tested: {claim.left_out}"
    if num_for == len(parts) and not claim.left_out and not unread and "" in data:
        return "supported", f"{reason}. {by_state['for'][0].text}"
    if num_for:
        other = by_state["against"] or by_state["open"]
        shown = [by_state["for"][0], *other[:1]]
        return "partly supported", f"{reason}. {'; '.join(j.text for j in shown)}"
    if num_against and not unread and "" in data:
        return "contradicted", f"{reason}. {by_state['against'][0].text}"
    shown = by_state["against"][:1] or by_state["open"][:1]
    return "inconclusive", f"{reason}. {shown[0].text}"


_STATES = {
    "for": "so",
    "against": "clearly not so",
    "open": "open",
    "under-run": "under-run",
    "not run": "not run",
}


def _hours(hours: float) -> str:
    return f"about {hours:g} core-hour{'' if hours == 1 else 's'}"
