"""Short texts of four two-class tasks: MR, CR, SUBJ and MPQA.

As in SentEval, A. Conneau and D. Kiela (2018): opinions on films, on products,
sentences that are subjective or objective, phrases that are positive or negative.
`topics` stands in where the files are not at hand.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pjax.datasets.loaders import speakers
from p2pjax.datasets.loaders.files import not_found
from p2pjax.datasets.loaders.text_files import read_json, read_text
from p2pjax.types import InputError

TASKS = ("MR", "CR", "SUBJ", "MPQA")


# SentEval's own files, class 0 and class 1, in a folder named after the task.
FILES = {
    "MR": ("rt-polarity.neg", "rt-polarity.pos"),
    "CR": ("custrev.neg", "custrev.pos"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.neg", "mpqa.pos"),
}


PACKED = ("senteval*.json", "senteval*.json.gz")


CONTENT = 'JSON with {task: {"neg": [texts], "pos": [texts]}}'


class Texts(NamedTuple):
    """Labelled texts of one task."""

    name: str
    texts: list[str]
    y: np.ndarray  # [E] int32, 0 or 1


def load(data_dir: str | Path, names: tuple[str, ...] = TASKS) -> list[Texts]:
    """Loads tasks in the order of their names.

    Args:
        data_dir: a folder with SentEval's MR, CR, SUBJ and MPQA, or with one
            senteval*.json or senteval*.json.gz, or such a file of any name:
            {task: {"neg": [texts], "pos": [texts]}}, where "pos" are the subjective
            ones of SUBJ.
        names: tasks wanted.

    Raises:
        InputError: nothing found, or a file cannot be used.
    """
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names:
        raise InputError(
            f"Need tasks among {', '.join(TASKS)}, got '{','.join(names)}'."
        )
    path = Path(data_dir)
    packed = [path] if path.is_file() else _found(path)
    if len(packed) > 1:
        raise InputError(
            f"SentEval needs one senteval*.json[.gz] in {path}, found "
            f"{', '.join(file.name for file in packed)}: name the file"
        )
    if packed:
        return _from_json(packed[0], names)
    if not all((path / name).is_dir() for name in names):
        wanted = (f"folders {', '.join(names)}", *PACKED)
        raise not_found(path, wanted, "SentEval")
    tasks = []
    for name in names:
        zero, one = (_lines(path / name / file) for file in FILES[name])
        tasks.append(_task(name, zero, one, str(path)))
    return tasks


def topics(num_texts: int = 60, seed: int = 0) -> list[Texts]:
    """A stand-in for the tasks: which of two topics a generated text is about.

    Task k tells topic k from topic k + 1 (`data.speakers`); easier than people's texts.

    Args:
        num_texts: of every topic.
        seed: 0 or more.
    """
    documents = speakers.speakers(5, num_texts, seed=seed, num_topics=5)
    texts = documents.train
    return [
        _task(f"topic_{k}", texts[k], texts[k + 1], "topics") for k in range(len(TASKS))
    ]


def _found(folder: Path) -> list[Path]:
    return sorted(file for pattern in PACKED for file in folder.glob(pattern))


def _from_json(path: Path, names: tuple[str, ...]) -> list[Texts]:
    content = read_json(path, CONTENT)
    tasks = []
    for name in names:
        parts = content.get(name) if isinstance(content, dict) else None
        if not isinstance(parts, dict) or not all(
            isinstance(parts.get(part), list)
            and all(isinstance(text, str) for text in parts[part])
            for part in ("neg", "pos")
        ):
            raise InputError(
                f"{path} must be {CONTENT} but has no such texts for {name}: write it "
                "as data/README.md says, or choose other tasks"
            )
        tasks.append(_task(name, parts["neg"], parts["pos"], str(path)))
    return tasks


def _task(name: str, zero: list[str], one: list[str], source: str) -> Texts:
    if not zero or not one:
        raise InputError(
            f"{source}: {name} needs texts of both classes, found {len(zero)} and "
            f"{len(one)}: get the files again"
        )
    y = np.repeat(np.arange(2, dtype=np.int32), (len(zero), len(one)))
    return Texts(name, [*zero, *one], y)


def _lines(path: Path) -> list[str]:
    text = read_text(path, "texts, one per line", "latin-1")
    return [line for line in text.split("\n") if line.strip()]
