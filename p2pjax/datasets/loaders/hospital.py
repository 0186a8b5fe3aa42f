"""Laboratory tests of patients, with or without COVID-19, of one hospital.

Hospital Israelita Albert Einstein, Sao Paulo (2020), "Diagnosis of COVID-19 and its
clinical spectrum". Ioste and Finger say theirs are of this hospital; whether they are
this table is unknown. 5644 patients, 558 of them positive.
Most cells are empty: 603 patients have a blood count, 1354 a panel of other pathogens.

Features are 34 of the table's 111 columns and 3 marks: the age quantile (0 to 19,
divided by 19); 14 values of the blood count; 17 pathogens; 2 rapid tests for influenza;
and after each of the last three groups whether anything of it was measured. The table
has blood values centred and scaled already, so an empty cell becomes 0, the mean; a
pathogen or test is 1 where detected, else 0, also where the cell is empty. Which ward
took the patient in is left out, being decided after the examination, and so are columns
that fewer than 550 patients have.
With 48 hidden cells and one output such a network has 1873 parameters, as in the paper.

`synthetic` stands in where the file is not at hand.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pjax.datasets import partition
from p2pjax.datasets.loaders.arrays import finite_floats
from p2pjax.datasets.loaders.files import not_found, reading, shown
from p2pjax.datasets.loaders.text_files import read_text
from p2pjax.datasets.stacking import Examples
from p2pjax.host_memory import check_room
from p2pjax.types import FederatedData, InputError

CONTENT = "the hospital's table as csv"


AGE = "Patient age quantile"


RESULT = "SARS-Cov-2 exam result"


OLDEST = 19


BLOOD = (
    "Hematocrit",
    "Hemoglobin",
    "Platelets",
    "Mean platelet volume",
    "Red blood Cells",
    "Lymphocytes",
    "Mean corpuscular hemoglobin concentration (MCHC)",
    "Leukocytes",
    "Basophils",
    "Mean corpuscular hemoglobin (MCH)",
    "Eosinophils",
    "Mean corpuscular volume (MCV)",
    "Monocytes",
    "Red blood cell distribution width (RDW)",
)


PATHOGENS = (
    "Respiratory Syncytial Virus",
    "Influenza A",
    "Influenza B",
    "Parainfluenza 1",
    "CoronavirusNL63",
    "Rhinovirus/Enterovirus",
    "Coronavirus HKU1",
    "Parainfluenza 3",
    "Chlamydophila pneumoniae",
    "Adenovirus",
    "Parainfluenza 4",
    "Coronavirus229E",
    "CoronavirusOC43",
    "Inf A H1N1 2009",
    "Bordetella pertussis",
    "Metapneumovirus",
    "Parainfluenza 2",
)


RAPID = ("Influenza B, rapid test", "Influenza A, rapid test")


FOUND = {"not_detected": 0.0, "detected": 1.0, "negative": 0.0, "positive": 1.0}


NUM_FEATURES = 1 + sum(len(group) + 1 for group in (BLOOD, PATHOGENS, RAPID))


# The stand-in of two classes with two modes each.
SYNTHETIC_FEATURES = 16


_DISTANCE = 4.0  # of the nearest two centres of different classes, in deviations


class TableSplit(NamedTuple):
    """How many (positive, negative) patients each host has."""

    hosts: tuple[tuple[int, int], ...]
    test: tuple[int, int] = (279, 279)
    repeats: bool = False  # training rows are repeated where there are too few

    def fits(self, num_positive: int, num_negative: int) -> bool:
        """Whether a table with so many patients of each class is large enough.

        Args:
          num_positive: of the table.
          num_negative: of the table.

        Example:
          >>> SPLITS["skewed"].fits(558, 5086), SPLITS["skewed"].fits(212, 357)
          (True, False)
        """
        return all(
            self.test[place] + (1 if self.repeats else self._num_trained(place)) <= had
            for place, had in enumerate((num_positive, num_negative))
        )

    def scaled(self, num_positive: int, num_negative: int) -> "TableSplit":
        """The same shares of a table that is too small; it repeats no row.

        A split that fits stays as it is.

        Args:
          num_positive: of the table.
          num_negative: of the table.

        Example:
          >>> SPLITS["skewed"].scaled(212, 357)
          TableSplit(hosts=((84, 40), (21, 161)), test=(106, 106), repeats=False)
        """
        if self.fits(num_positive, num_negative):
            return self
        factor = min(
            had / (self.test[place] + self._num_trained(place))
            for place, had in enumerate((num_positive, num_negative))
        )

        def part(numbers: tuple[int, int]) -> tuple[int, int]:
            # Not less than one, so that no host and no test is without a class.
            positive, negative = (max(1, int(number * factor)) for number in numbers)
            return positive, negative

        return TableSplit(tuple(map(part, self.hosts)), part(self.test))

    def _num_trained(self, place: int) -> int:
        return sum(host[place] for host in self.hosts)


# The paper's three. Its balanced one needs 532 + 279 positive patients of 558, so some
# must be used twice: here training rows only, after the test rows were taken out.
SPLITS = {
    "balanced": TableSplit(((284, 284), (248, 248)), repeats=True),
    "balanced_once": TableSplit(((149, 149), (130, 130))),
    "unbalanced": TableSplit(((162, 324), (117, 208))),
    "skewed": TableSplit(((223, 107), (56, 425))),
}


def load(data_dir: str | Path) -> Examples:
    """Loads all patients; the positive ones are class 1, and all are of user 0.

    Args:
        data_dir: the table as csv, packed by gzip or not, or a folder with one
            einstein*.csv or einstein*.csv.gz.

    Returns:
        The examples, x as float32 [E, 37].

    Raises:
        InputError: nothing found, or the file cannot be used.
    """
    path = _find_file(Path(data_dir))
    text = read_text(path, CONTENT, "utf-8-sig")
    with reading(path, CONTENT, csv.Error):
        x, y = _read_rows(csv.reader(io.StringIO(text)), path)
    return Examples(
        finite_floats(np.asarray(x), str(path)),
        np.asarray(y, np.int32),
        np.zeros(len(y), np.int32),
        num_classes=2,
    )


def _read_rows(
    rows: Iterator[list[str]], path: Path
) -> tuple[list[list[float]], list[int]]:
    # Names have hard spaces, and some end with a space.
    names = [" ".join(name.split()) for name in next(rows, [])]
    missing = {AGE, RESULT, *BLOOD, *PATHOGENS, *RAPID} - set(names)
    if missing:
        raise InputError(
            f"{path} must be {CONTENT} with a line of names first, but lacks "
            f"{len(missing)} columns, e.g. '{min(missing)}': write the whole table"
        )
    columns = {name: place for place, name in enumerate(names)}
    x, y = [], []
    for number, cells in enumerate(rows, start=2):
        if len(cells) != len(names):
            raise InputError(
                f"{path}, line {number}: must have {len(names)} cells, found "
                f"{len(cells)}: get the file again"
            )
        row = {name: cells[place].strip() for name, place in columns.items()}
        source = f"{path}, line {number}"
        x.append(_features(row, source))
        y.append(int(_found(row, RESULT, source)))
    if not y:
        raise InputError(f"{path}: at least one patient is needed, found none")
    return x, y


def synthetic(size: int = 2000, seed: int = 0) -> Examples:
    """Made-up patients: two classes of two normal clouds each, half of them positive.

    Not a model of a disease; a network that sees all tells about 98 % of them apart.

    Args:
        size: examples.
        seed: 0 or more.
    """
    if size < 1 or seed < 0:
        raise InputError(
            f"Need at least one example and a seed of 0 or more, got {size} and {seed}."
        )
    check_room(size * SYNTHETIC_FEATURES * (4 + 2 * 8), f"{size} patients")
    rng = np.random.default_rng([seed, 0])
    centers = rng.normal(size=(2, 2, SYNTHETIC_FEATURES))
    # Scaled to the same distance, so that seeds are equally hard.
    between = centers[0][:, None] - centers[1][None]
    centers *= _DISTANCE / np.linalg.norm(between, axis=-1).min()
    y = rng.permutation(np.arange(size) % 2).astype(np.int32)
    x = centers[y, rng.integers(0, 2, size)]
    x = x + rng.normal(size=x.shape)
    return Examples(x.astype(np.float32), y, np.zeros_like(y), num_classes=2)


def ceiling(examples: Examples) -> float:
    """The best accuracy that any function of the features has on these two classes.

    Both classes count half. Patients of whom the same is known cannot be told apart, so
    the best guess for them is the class in which they are more frequent.
    """
    _, kind = np.unique(examples.x, axis=0, return_inverse=True)
    shares = np.zeros((kind.max() + 1, 2))
    np.add.at(shares, (kind.reshape(-1), examples.y), 1)
    shares /= shares.sum(0)
    return float(shares.max(1).sum() / 2)


def world(
    examples: Examples,
    rng: np.random.Generator,
    split: TableSplit,
    held_out: float = 0.2,
) -> FederatedData:
    """Hosts with the split's numbers of patients, and one test set for all.

    Test patients are drawn first, then those of the hosts; no two hosts share a
    patient but for training rows that are repeated. Every host holds some of its rows
    out.

    Args:
        examples: two classes, 1 is positive.
        rng: source of everything random.
        split: who has how many.
        held_out: share of a host's training rows that validate, of each class.

    Raises:
        InputError: too few patients.
    """
    train: list[list[np.ndarray]] = [[] for _ in split.hosts]
    test = []
    for label, name in ((1, "positive"), (0, "negative")):
        own = rng.permutation(np.flatnonzero(examples.y == label))
        place = 1 - label
        needed = [host[place] for host in split.hosts]
        num_test = split.test[place]
        rest = own[num_test:]
        least = 1 if split.repeats else sum(needed)
        if len(rest) < least:
            raise InputError(
                f"Need {num_test} + {least} {name} examples for tests and training, "
                f"got {len(own)}: choose another split or other data."
            )
        test.append(own[:num_test])
        rows = np.resize(rest, max(sum(needed), 1))[: sum(needed)]
        rows = rng.permutation(rows)
        for host, part in zip(
            train, np.split(rows, np.cumsum(needed)[:-1]), strict=True
        ):
            host.append(part)
    hosts = [rng.permutation(np.concatenate(parts)) for parts in train]
    tests = [np.concatenate(test)] * len(hosts)
    return partition.hold_out(
        partition.federated_data(examples, hosts, tests), held_out
    )


def _features(row: dict[str, str], source: str) -> list[float]:
    features = [_number(row, AGE, source) / OLDEST]
    for group, read in ((BLOOD, _number), (PATHOGENS, _found), (RAPID, _found)):
        measured = [name for name in group if row[name]]
        features += [read(row, name, source) if row[name] else 0.0 for name in group]
        features.append(float(bool(measured)))
    return features


def _number(row: dict[str, str], name: str, source: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise InputError(
            f"{source}: '{name}' must be a number, found '{shown(row[name])}': get "
            "the file again"
        )
    return value


def _found(row: dict[str, str], name: str, source: str) -> float:
    if row[name] not in FOUND:
        raise InputError(
            f"{source}: '{name}' must be one of {', '.join(FOUND)}, found "
            f"'{shown(row[name])}': get the file again"
        )
    return FOUND[row[name]]


def _find_file(data_dir: Path) -> Path:
    if data_dir.is_file():
        return data_dir
    found = sorted(data_dir.glob("einstein*.csv*")) if data_dir.is_dir() else []
    if not found:
        raise not_found(data_dir, ["one einstein*.csv[.gz]"], "The hospital's table")
    if len(found) > 1:
        raise InputError(
            f"The hospital's table needs one einstein*.csv[.gz] in {data_dir}, found "
            f"{', '.join(file.name for file in found)}: name the file"
        )
    return found[0]
