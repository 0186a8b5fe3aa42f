"""Reddit comments by user, as LEAF preprocesses them (Caldas et al. 2018)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from p2pjax.datasets.loaders.files import listed, not_found, shown
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.loaders.text_files import read_json
from p2pjax.types import InputError

KEYS = ("users", "user_data")


CONTENT = "LEAF JSON of Reddit with users and user_data"


SPLITS = ("train", "val", "test")


MOSTLY = 0.9  # of a user's comments in each split, to be of one subreddit


_AGAIN = "run LEAF's data/reddit/source/preprocess.py again"


class Comments(NamedTuple):
    """One user's comments in one split."""

    texts: list[str]
    subreddits: list[str]  # "" where the file does not tell


def load(
    data_dir: str | Path,
    *,
    subreddits: Sequence[str] = (),
    max_users: int | None = None,
) -> Documents:
    """Loads the comments of each user, split as LEAF did, 60 / 20 / 20 by time.

    Supported is what LEAF offers for download and its preprocess.py writes:
    {"users": [...], "num_samples": [...], "user_data": {user: {"x": [comment, ...],
    "y": [...]}}}, a comment being chunks of ten tokens, the first <BOS>, the last <EOS>
    and then <PAD>; y has an object per comment, of which only "subreddit" is read. A
    comment's chunks become one text again. `num_samples` is not read: it is that of all
    splits together. The files before preprocess.py, with comments as strings, are
    refused.

    Args:
        data_dir: a folder with train/*.json, val/*.json and test/*.json.
        subreddits: where given, only users who write in exactly one of these: their
            training comments touch one, the others touch none of the rest, and at
            least 90 % of each split is of that one. Its place is the user's group.
        max_users: the first so many of the training files only, counted before the
            choice of subreddits; all of Reddit has 1.66 million. None is all.

    Returns:
        The texts, one per comment.

    Raises:
        InputError: nothing found, a file cannot be used, or no user is left.
    """
    folder = Path(data_dir)
    files = {split: sorted((folder / split).glob("*.json")) for split in SPLITS}
    if not all(files.values()):
        raise not_found(folder, [" and ".join(f"{s}/*.json" for s in SPLITS)], "Reddit")
    train: dict[str, Comments] = {}
    for file in files["train"]:
        if max_users is None or len(train) < max_users:
            train |= _read_users(file)
    users = list(train)[:max_users]
    others = [_read_wanted(files[split], users) for split in SPLITS[1:]]
    splits = [[part[user] for user in users] for part in (train, *others)]
    group = None
    if subreddits:
        homes = np.array(
            [_home(parts, subreddits) for parts in zip(*splits, strict=True)], np.int32
        )
        keep = np.flatnonzero(homes >= 0)
        users = [users[u] for u in keep]
        splits = [[part[u] for u in keep] for part in splits]
        group = homes[keep]
    if not users:
        chosen = f" who write in only one of {', '.join(subreddits)}"
        raise InputError(
            f"{folder}: at least one user{chosen if subreddits else ''} is needed, "
            f"found none among {len(train)}: read more users or name other subreddits"
        )
    own, valid, test = ([comments.texts for comments in part] for part in splits)
    return Documents(users, own, valid, test, group)


def _home(splits: Sequence[Comments], subreddits: Sequence[str]) -> int:
    """Which of the subreddits a user is at home in; -1 for none."""
    touched = set(splits[0].subreddits) & set(subreddits)
    if len(touched) != 1:
        return -1
    (home,) = touched
    for comments in splits:
        names = comments.subreddits
        if set(names) & (set(subreddits) - touched):
            return -1
        if not names or names.count(home) < MOSTLY * len(names):
            return -1
    return list(subreddits).index(home)


def _read_wanted(files: list[Path], users: list[str]) -> dict[str, Comments]:
    """The comments of these users; none where a user has none."""
    wanted = {user: Comments([], []) for user in users}
    missing = set(users)
    for file in files:
        if missing:
            found = _read_users(file, missing)
            wanted |= found
            missing -= set(found)
    return wanted


def _read_users(path: Path, wanted: set[str] | None = None) -> dict[str, Comments]:
    content = read_json(path, CONTENT)
    keys = list(content) if isinstance(content, dict) else []
    if not set(KEYS) <= set(keys):
        found = f"the keys {listed(keys)}" if keys else type(content).__name__
        raise InputError(f"{path} must be {CONTENT} but holds {found}: {_AGAIN}")
    users, user_data = (content[key] for key in KEYS)
    names = isinstance(users, list) and all(isinstance(user, str) for user in users)
    if not names or not isinstance(user_data, dict):
        raise InputError(
            f"{path}: users must be a list of names and user_data an object, found "
            f"{type(users).__name__} and {type(user_data).__name__}: {_AGAIN}"
        )
    return {
        user: _comments(user_data.get(user), f"{path}, user {shown(user)}")
        for user in users
        if wanted is None or user in wanted
    }


def _comments(record: Any, source: str) -> Comments:
    if not isinstance(record, dict) or not isinstance(record.get("x"), list):
        raise InputError(
            f"{source}: user_data must have x, a list of comments, found "
            f"{shown(record)}: {_AGAIN}"
        )
    x, y = record["x"], record.get("y")
    if not isinstance(y, list) or len(y) != len(x):
        found = f"{len(y)}" if isinstance(y, list) else type(y).__name__
        raise InputError(
            f"{source}: y must have one object for each of {len(x)} comments, found "
            f"{found}: {_AGAIN}"
        )
    return Comments([_text(comment, source) for comment in x], [_home_of(v) for v in y])


def _home_of(label: Any) -> str:
    name = label.get("subreddit") if isinstance(label, dict) else None
    return name if isinstance(name, str) else ""


def _text(comment: Any, source: str) -> str:
    """One text of a comment's chunks of tokens; markers stay, cleaning deletes them."""
    if not isinstance(comment, list) or not all(
        isinstance(chunk, list) and all(isinstance(token, str) for token in chunk)
        for chunk in comment
    ):
        raise InputError(
            f"{source}: a comment must be a list of lists of tokens, found "
            f"{shown(comment)}: {_AGAIN}"
        )
    return " ".join(token for chunk in comment for token in chunk)
