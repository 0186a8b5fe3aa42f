"""Word pieces, masked tokens and named entities: layouts, files, refusals."""

import gzip
import sys

import numpy as np
import pytest

from p2pjax.datasets import label_sets
from p2pjax.datasets.loaders import masked, ner, pieces, shakespeare, speakers, text
from p2pjax.types import InputError

VOCABULARY = [*pieces.SPECIAL, "walk", "##ing", "##s", "he", "the", "dog", "s", "'"]


@pytest.fixture(scope="module")
def known():
    return pieces.from_vocabulary(VOCABULARY)


def spelled(known, ids):
    return " ".join(known.pieces[i] for i in ids)


def test_words_are_cut_greedily(known):
    def cut(word):
        return spelled(known, known.cut(word))

    assert cut("Walking") == "walk ##ing"
    assert cut("walks") == "walk ##s"
    assert cut("he's") == "he ' s"
    assert cut("Dög") == "dog"
    assert cut("walker") == "[UNK]"
    assert cut("dogs") == "dog ##s"
    assert cut("\u0301") == "[UNK]"  # nothing is left of it
    assert cut("s" * 101) == "[UNK]"
    assert known.continues.sum() == 2
    assert known.num_ids == len(VOCABULARY)


def test_the_same_pieces_as_the_tokenizers_library():
    library = pytest.importorskip("tokenizers", reason="tokenizers trains the pieces")
    texts = [t for own in speakers.speakers(4, 10).train for t in own]
    found = pieces.train(texts, 120)
    assert found.num_ids == 120
    assert found.pieces[:5] == pieces.SPECIAL
    vocabulary = {piece: number for number, piece in enumerate(found.pieces)}
    model = library.models.WordPiece(vocabulary, unk_token="[UNK]")
    for word in sorted({w for t in texts for w in pieces.basic_words(t)}):
        expected = [token.id for token in model.tokenize(word)]
        assert list(found.cut(word)) == expected


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install 'p2pjax\[text\]'"):
        pieces.train(["a text"], 50)


def test_vocabulary_files(known, tmp_path):
    path = tmp_path / "vocab.txt"
    pieces.write(path, known)
    assert pieces.read(path).pieces == known.pieces
    path.write_text("walk\n[PAD]\n")
    with pytest.raises(InputError, match="vocab.txt must have the pieces .* lacks"):
        pieces.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="vocabulary, one piece per line but cannot"):
        pieces.read(path)
    with pytest.raises(InputError, match="is missing"):
        pieces.read(tmp_path / "none.txt")
    last = [*VOCABULARY[1:], "[PAD]"]
    with pytest.raises(InputError, match="lacks it there"):
        pieces.from_vocabulary(last)


def test_masked_tokens_as_specified(known):
    """[CLS] pieces before it [MASK] [SEP]; no target continues a word."""
    documents = text.Documents(["a"], [["Walking dogs. He walks"]], test=[["the dog"]])
    corpus = masked.encode(documents, known)
    world = masked.world_of_users(
        corpus, [0], np.random.default_rng(0), known, length=7
    )
    # 75 % of the four samples train.
    tokens, y = world.train.examples["tokens"][0], world.train.examples["y"][0]
    samples = {
        known.pieces[t]: spelled(known, x) for t, x in zip(y, tokens, strict=True)
    }
    pad = " [PAD]"
    assert samples == {
        "walk": "[CLS] [MASK] [SEP]" + 4 * pad,
        "dog": "[CLS] walk ##ing [MASK] [SEP]" + 2 * pad,
        "he": "[CLS] [MASK] [SEP]" + 4 * pad,
    }
    assert world.train.size.tolist() == [3]
    assert tokens.dtype == np.int16
    shorter = masked.world_of_users(
        corpus, [0], np.random.default_rng(0), known, length=4, max_examples=1
    )
    assert shorter.train.size.tolist() == [1]
    cut = masked._spelled_out(corpus.train[0]._replace(target=np.array([2])), known, 4)
    assert spelled(known, cut["tokens"][0]) == "[CLS] ##ing [MASK] [SEP]"
    with pytest.raises(InputError, match="4 tokens or more"):
        masked.world_of_users(corpus, [0], np.random.default_rng(0), known, length=3)


CONLL = """-DOCSTART- -X- -X- O

He PRP B-NP O
walks VBZ B-VP O

Walking NN B-NP B-PER
Dogs NN I-NP I-PER
the DT I-NP O
"""


def write_parts(folder, names, content, packed=False):
    for name in names:
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
        else:
            (folder / name).write_text(content)


@pytest.mark.parametrize("packed", [False, True])
def test_conll_files_and_the_layout_of_sentences(known, tmp_path, packed):
    names = ("eng.train", "eng.testa", "eng.testb")
    write_parts(tmp_path, names, CONLL, packed)
    tagged = ner.load(tmp_path, "conll2003")
    assert tagged.train == [
        ner.Sentence(["He", "walks"], ["O", "O"]),
        ner.Sentence(["Walking", "Dogs", "the"], ["B-PER", "I-PER", "O"]),
    ]
    labels = ner.label_set(tagged)
    assert labels.names[4:] == ("B-PER", "I-PER")
    world = ner.world_of_sentences(
        tagged, known, labels, np.random.default_rng(0), num_agents=2, length=8
    )
    assert world.train.size.tolist() == [1, 1]
    rows = {
        spelled(known, tokens[0]): (positions[0].tolist(), label[0].tolist())
        for tokens, positions, label in zip(
            *(world.train.examples[n] for n in ("tokens", "positions", "labels")),
            strict=True,
        )
    }
    assert rows == {
        "[CLS] he walk ##s [SEP] [PAD] [PAD] [PAD]": (
            [0, 1, 2, 4, 0, 0, 0, 0],
            [2, 1, 1, 3, 0, 0, 0, 0],
        ),
        "[CLS] walk ##ing dog ##s the [SEP] [PAD]": (
            [0, 1, 3, 5, 6, 0, 0, 0],
            [2, 4, 5, 1, 3, 0, 0, 0],
        ),
    }
    short = ner.world_of_sentences(
        tagged, known, labels, np.random.default_rng(0), num_agents=1, length=5
    )
    ends = {spelled(known, t) for t in short.train.examples["tokens"][0]}
    assert ends == {"[CLS] he walk ##s [SEP]", "[CLS] walk ##ing dog [SEP]"}
    with pytest.raises(InputError, match="for each of 3 agents in every part, got 2"):
        ner.world_of_sentences(
            tagged, known, labels, np.random.default_rng(0), num_agents=3, length=8
        )
    with pytest.raises(InputError, match="3 tokens or more"):
        ner.world_of_sentences(
            tagged, known, labels, np.random.default_rng(0), num_agents=1, length=2
        )


def test_few_nerd_keeps_the_coarse_type(tmp_path):
    content = "Paris\tlocation-GPE\nis\tO\n\nShe\tO\nacts\tperson-actor\n"
    write_parts(tmp_path, ("train.txt", "dev.txt", "test.txt"), content)
    tagged = ner.load(tmp_path, "few_nerd")
    assert [s.tags for s in tagged.test] == [["I-location", "O"], ["O", "I-person"]]


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match="wnut17 needs wnut17_train.txt"):
        ner.load(tmp_path, "wnut17")
    path = tmp_path / "file.txt"
    for content, message in (
        ("word\n", "line 1: must be a word and its tag"),
        ("word person\n", 'found "word person"'),
        ("-DOCSTART- O\n\n", "has no sentence"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            ner.read(path)
    path.write_bytes(gzip.compress(b"word O\n")[:-6])
    with pytest.raises(InputError, match="cannot be read"):
        ner.read(path)


def test_tagged_speakers_say_what_speakers_say():
    texts = speakers.speakers(3, 5, seed=4).train
    tagged = speakers.tagged_speakers(3, 5, seed=4)
    for own, sentences in zip(texts, tagged, strict=True):
        words = [word for text_ in own for word in text.words(text_)]
        assert words == [word for sentence in sentences for word in sentence.words]
        tags = {tag for sentence in sentences for tag in sentence.tags}
        assert tags <= {"O", "B-THING", "I-THING", "B-PERSON", "B-PLACE"}
        for sentence in sentences:
            for before, tag in zip(["O", *sentence.tags], sentence.tags, strict=False):
                assert tag != "I-THING" or before == "B-THING"


def test_real_files(real_data):
    conll, wnut = (ner.load(real_data, name) for name in ("conll2003", "wnut17"))
    assert [len(part) for part in conll] == [14041, 3250, 3453]
    assert [len(part) for part in wnut] == [3394, 1009, 1287]
    assert len(ner.label_set(conll).names) == 12
    assert len(ner.label_set(wnut).names) == 16
    few = [sentence for sentence in conll.train[:200]]
    known = pieces.whole_words(word for s in few for word in s.words)
    world = ner.world_of_sentences(
        ner.Tagged(few, few, few),
        known,
        ner.label_set(conll),
        np.random.default_rng(0),
        num_agents=4,
        length=64,
    )
    labels = world.train.examples["labels"]
    assert (labels[..., 0] == label_sets.CLS).all()
    assert known.unknown not in world.train.examples["tokens"]
    roles = shakespeare.load(real_data)
    first = roles._replace(
        users=roles.users[:2], train=roles.train[:2], test=roles.test[:2]
    )
    corpus = masked.encode(first, known)
    assert all(len(samples.target) for samples in corpus.train)
