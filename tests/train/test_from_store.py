"""Training on features of a store of a corpus: what is read, what is refused, and that nothing is encoded."""

import json

import msgspec
import numpy as np
import pytest

from polyhead import plan
from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.certify.verification import verify
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, StoreError, TrainError, WrongTrunk
from polyhead.plan import Codec
from polyhead.plan.coding import calibrate
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.tables import TrunkChoice
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.ids import document_id
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.packed import means
from polyhead.testing import tiny_trunk
from polyhead.text.hashing import hashed_text
from polyhead.text.words import join_tokens
from polyhead.train import candidates
from polyhead.train.data import stored
from polyhead.train.data.source import FeatureRequest
from polyhead.train.data.stored import StoredFeatures
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import tiny_project
from support.stores import make_store, stored_path, token_codec

STRATEGY = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8)  # it names no codec


def rows_of(folder, kind):
    """Every row of the files of one kind."""
    files = sorted((folder / "data").glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def texts_of(folder):
    """Every message, every pair as one input, and every text of a pair."""
    messages, pairs = rows_of(folder, "messages"), rows_of(folder, "pairs")
    several = [(row["text"],) for row in messages] + [(join_tokens(row["tokens"])[0],) for row in messages]
    several += [(row["text"], row["text_b"]) for row in pairs]
    several += [(row[name],) for row in pairs for name in ("text", "text_b")]
    return list(dict.fromkeys(several))


@pytest.fixture
def home(tmp_path):
    """A folder with trunk and data, and the trunk as training reads it."""
    tiny_project.project(tmp_path)
    return tmp_path, load_trunk(str(tmp_path / "trunk"))


@pytest.fixture
def no_encoder(monkeypatch):
    """Whatever would build or run the trunk fails."""

    def refuse(*arguments, **named):
        raise AssertionError("the encoder was touched")

    monkeypatch.setattr("polyhead.train.data.extract.open_backend", refuse)
    monkeypatch.setattr("polyhead.deep.nn.trunk.Trunk.from_data", refuse)
    monkeypatch.setattr("polyhead.engine.session.Session.__init__", refuse)
    return refuse


def project(folder, *names, strategy=STRATEGY, **changes):
    training = changes.pop("training", tiny_project.TRAINING)
    return tiny_project.project(folder, *names, strategy=strategy, training=training, **changes)


def test_tasks_of_every_kind_are_trained_without_the_encoder(home, no_encoder, monkeypatch):
    """Also the trunk's weights are not read where the bundle is there: loading it raises."""
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder), trunk=trunk)
    write_bundle(folder / "bundle", trunk)
    monkeypatch.setattr("polyhead.train.run.load_any_trunk", no_encoder)
    monkeypatch.setattr(Bundle, "trunk", no_encoder)
    outcome = train_project(project(folder), folder=folder, features=folder / "store")
    assert set(outcome.trained) == set(tiny_project.ENTRIES) and outcome.extraction.passes == 0
    assert all(np.isfinite(value) for splits in outcome.trained.values() for value in splits["test"].values())


def test_the_head_is_the_one_that_features_of_the_texts_give(home):
    """In an exact codec and one arithmetic both ways of training see the same numbers, up to the backends' rounding."""
    folder, trunk = home
    exact = msgspec.structs.replace(STRATEGY, codec="float32")
    make_store(str(folder / "store"), texts_of(folder), stored_path(trunk, codec=Codec(name="float32")), trunk=trunk)
    names = ("mood", "names", "alike")
    for name, features in (("texts", None), ("stored", folder / "store")):
        declared = msgspec.structs.replace(project(folder, *names, strategy=exact), bundle=name)
        train_project(declared, folder=folder, features=features)
    one, other = (Bundle.open(folder / name) for name in ("texts", "stored"))
    for name in names:
        for key, array in one.part(name).items():
            np.testing.assert_allclose(other.part(name)[key], array, atol=2e-3, err_msg=f"{name} {key}")


@pytest.mark.parametrize("codec", ["sign", "token1"])
def test_a_backfill_from_the_same_store_answers_as_a_session_does(home, codec):
    folder, trunk = home
    place, inputs = str(folder / "store"), texts_of(folder)
    kept = Codec(name=codec) if codec == "sign" else token_codec(trunk, inputs)
    make_store(place, inputs, stored_path(trunk, codec=kept), trunk=trunk)
    train_project(project(folder, "mood", "topics", "urgency"), folder=folder, features=place)
    bundle = Bundle.open(folder / "bundle")
    assert {record.path.pool.codec.name for record in bundle.tasks.values()} == {codec}
    done = backfill(place, folder / "bundle", BackfillRequest(tasks=("mood", "urgency"), all_scores=True))
    columns = {(column.task, column.all_scores): column.name for column in done.columns}
    store = open_corpus(place)
    inputs = [(row["text"],) for row in rows_of(folder, "messages")]
    places = store.find([document_id(text) for text in inputs])
    scores = results(store, columns["mood", True], "scores", places)
    values = results(store, columns["urgency", False], "value", places)
    answers = Session(folder / "bundle", backend="reference").columns(inputs, tasks=["mood", "urgency"])
    np.testing.assert_allclose(scores, answers["mood"].scores, atol=2e-3)  # the column is float16
    np.testing.assert_allclose(values, answers["urgency"].value, atol=1e-4)


@pytest.mark.parametrize("words", [False, True])
def test_kept_tokens_are_enough_for_linear_heads_and_these_need_no_torch(home, monkeypatch, words):
    """A default store has no mean vector: no linear head was tried, and without torch none was left at all."""
    monkeypatch.setattr(candidates, "is_installed", lambda package: False)
    monkeypatch.setattr(candidates, "LEAST_ROWS", 8)
    folder, trunk = home
    place, inputs = str(folder / "store"), texts_of(folder)
    path = stored_path(trunk, codec=token_codec(trunk, inputs))
    make_store(place, inputs, path, trunk=trunk, words=words)
    names, tried = ("mood", "topics", "urgency"), {"linear, mean of tokens", "linear, mean of tokens, words"}
    tried = tried if words else set()  # of one head there is no choice
    train_project(project(folder, *names, strategy=Pooled(of=2)), folder=folder, features=place)
    bundle, store = Bundle.open(folder / "bundle"), open_corpus(place)
    session = Session(folder / "bundle", backend="reference")
    messages = [(row["text"],) for row in rows_of(folder, "messages")]
    (digest,) = (column.digest for column in store.schema.features)
    kept = [means(store.schema.column(digest), store.rows(each.name, digest)) for each in store.fragments]
    places = store.find([document_id(text) for text in messages])
    vectors = np.stack([kept[fragment][row] for fragment, row in places.tolist()])
    done = backfill(place, folder / "bundle", BackfillRequest(tasks=("urgency",)))
    store.refresh()
    for name in names:
        arrays, head = bundle.part(name), bundle.tasks[name].path.head
        assert set(bundle.scores(name)["tried"]) == tried
        assert bundle.scores(name)["chosen"].startswith("linear, mean of tokens")
        outputs = vectors @ arrays["head.output.weight"].T + arrays["head.output.bias"]
        if head.words:
            hashed = [hashed_text(text, head.words) for (text,) in messages]
            outputs += np.stack([values @ arrays["words.weight"][columns] for columns, values in hashed])
        np.testing.assert_allclose(np.stack(session.outputs(name, messages)), outputs, atol=1e-4)
    values = results(store, done.columns[0].name, "value", places)
    np.testing.assert_allclose(values, session.columns(messages, tasks=["urgency"])["urgency"].value, atol=1e-4)


def test_attention_is_tried_beside_linear_heads_of_kept_tokens(home):
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder), stored_path(trunk), trunk=trunk)
    declared = project(folder, "mood", "same", "names", strategy=Pooled(of=2, hidden=8))
    train_project(declared, folder=folder, features=folder / "store")
    bundle = Bundle.open(folder / "bundle")
    assert set(bundle.scores("mood")["tried"]) == {"linear, mean of tokens", "attention"}
    assert "linear" in bundle.scores("mood")["baselines"]


def results(store, column, name, places):
    """A column's numbers for documents at these places."""
    arrays = [store.results(fragment.name, column)[name] for fragment in store.fragments]
    return np.array([arrays[fragment][row] for fragment, row in places.tolist()], np.float32)


def test_the_codec_of_the_store_is_taken_with_its_table(home):
    """A codec whose arrays lie in a file: the bundle gets them, and its task reads what the store keeps."""
    folder, trunk = home
    inputs = texts_of(folder)
    drawn = np.random.default_rng(0).normal(size=(4096, trunk.architecture.width)).astype(np.float32)
    path = stored_path(trunk, codec=calibrate(drawn, name="pca1"))
    make_store(str(folder / "store"), inputs, path, trunk=trunk)
    train_project(project(folder, "mood"), folder=folder, features=folder / "store")
    record = Bundle.open(folder / "bundle").tasks["mood"]
    assert plan.digest(record.path.stored()) == plan.digest(path) and record.path.pool.codec.arrays
    assert record.trained_with["columns"] == [plan.digest(path)]
    assert backfill(folder / "store", folder / "bundle", BackfillRequest()).filled == len(inputs)


def test_heads_whose_features_are_not_kept_are_left_out_and_named(home):
    folder, trunk = home
    several = (stored_path(trunk), stored_path(trunk, layers="last", of=1, positions="mean", codec=Codec()))
    make_store(str(folder / "store"), texts_of(folder), *several, trunk=trunk)
    lines = []
    declared = project(folder, "mood", "names", strategy=Pooled(of=2, hidden=8))
    train_project(declared, folder=folder, features=folder / "store", events=Events(say=lines.append))
    bundle = Bundle.open(folder / "bundle")
    assert set(bundle.scores("mood")["tried"]) == {"linear, last layer", "attention"}
    assert set(bundle.scores("names")["tried"]) == {"linear, with neighbours", "linear", "hidden layer"}
    (line,) = [line for line in lines if "not tried" in line]
    assert line.startswith("mood: ") and line.endswith(": linear, last 2 layers")


@pytest.mark.parametrize("words", [True, False])
def test_heads_that_read_words_are_tried_where_the_store_keeps_words(home, monkeypatch, words):
    """What they answer from the store is what a session answers, and what training on the texts gives."""
    monkeypatch.setattr(candidates, "LEAST_ROWS", 8)
    folder, trunk = home
    mixes = ({"layers": "last", "of": 1}, {})
    kept = [stored_path(trunk, **mix, positions="mean", codec=Codec(name="float16")) for mix in mixes]
    make_store(str(folder / "store"), texts_of(folder), *kept, trunk=trunk, words=words)
    declared = project(folder, "mood", "alike", strategy=Pooled(of=2, hidden=8))
    lines = []
    train_project(declared, folder=folder, features=folder / "store", events=Events(say=lines.append))
    bundle = Bundle.open(folder / "bundle")
    assert ("linear, last 2 layers, words" in bundle.scores("mood")["tried"]) == words
    assert not any("words" in name for name in bundle.scores("alike").get("tried", ()))  # of pairs
    left = {line.split(": ")[0]: line for line in lines if "not tried" in line}
    assert ("words" in left["mood"]) != words and "words" in left["alike"]
    if words:
        assert bundle.tasks["mood"].path.head.words
        done = backfill(folder / "store", folder / "bundle", BackfillRequest(tasks=("mood",), all_scores=True))
        (column,) = [each.name for each in done.columns if each.all_scores]
        store, inputs = open_corpus(folder / "store"), [(row["text"],) for row in rows_of(folder, "messages")]
        scores = results(store, column, "scores", store.find([document_id(text) for text in inputs]))
        answers = Session(folder / "bundle", backend="reference").columns(inputs, tasks=["mood"])
        np.testing.assert_allclose(scores, answers["mood"].scores, atol=2e-3)


def test_texts_that_the_store_lacks_are_named_by_their_rows(home):
    folder, trunk = home
    train = dict(enumerate(json_rows(folder / "data" / "messages-train.jsonl"), 1))
    lost = [number for number in train if number % 4 == 0]
    gone = {train[number]["text"] for number in lost} | {rows_of(folder, "messages")[0]["text"]}  # one of test
    make_store(str(folder / "store"), [text for text in texts_of(folder) if text[0] not in gone], trunk=trunk)
    with pytest.raises(StoreError, match=f"lacks {len(gone)} of the texts") as caught:
        train_project(project(folder, "mood"), folder=folder, features=folder / "store")
    assert f"task 'mood', train: rows {', '.join(map(str, lost[:5]))} and {len(lost) - 5} more" in str(caught.value)
    assert "polyhead features extract" in caught.value.do
    assert caught.value.rows["task 'mood', train"] == lost and not Bundle.open(folder / "bundle").tasks


def json_rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"strategy": msgspec.structs.replace(STRATEGY, codec="uint8")}, StoreError, ("'uint8'", "'sign'")),
        ({"strategy": msgspec.structs.replace(STRATEGY, of=1)}, StoreError, ("mean of layer 2 alone", "a token, sign")),
        ({"strategy": Branch(layers=1)}, TrainError, ("strategy 'branch'", "without the store")),
        ({"training": Training(precision="bfloat16")}, TrainError, ("bfloat16", "float32")),
    ],
    ids=["codec", "layers", "strategy", "precision"],
)
def test_what_does_not_fit_the_store_is_refused_with_both_named(home, changes, error, words):
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder)[:3], trunk=trunk)
    with pytest.raises(error) as caught:
        train_project(project(folder, "mood", **changes), folder=folder, features=folder / "store")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_store_of_another_trunk_is_refused(home):
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder)[:3], trunk=trunk)
    with pytest.raises(StoreError, match="another trunk") as caught:
        train_project(project(folder, "mood", max_tokens=12), folder=folder, features=folder / "store")
    assert trunk.digest in str(caught.value) and "max_tokens 12" in str(caught.value)


def test_a_store_that_names_no_trunk_is_refused(home):
    folder, trunk = home
    schema = make_store(str(folder / "store"), texts_of(folder)[:3], trunk=trunk).schema
    create_corpus(str(folder / "nameless"), msgspec.structs.replace(schema, source={"precision": "float32"}))
    with pytest.raises(StoreError, match="trunk that it does not name"):
        train_project(project(folder, "mood"), folder=folder, features=folder / "nameless")


def test_of_several_codecs_the_named_one_is_read(home, no_encoder):
    folder, trunk = home
    both = (stored_path(trunk), stored_path(trunk, codec=Codec(name="float32")))
    make_store(str(folder / "store"), texts_of(folder), *both, trunk=trunk)
    with pytest.raises(StoreError, match="several codecs"):
        train_project(project(folder, "mood"), folder=folder, features=folder / "store")
    for codec in ("sign", "float32"):
        named = msgspec.structs.replace(STRATEGY, codec=codec)
        declared = project(folder, "mood", strategy=named)
        outcome = train_project(declared, folder=folder, features=folder / "store")
        assert Bundle.open(folder / "bundle").tasks["mood"].path.pool.codec.name == codec
    assert outcome.compared["mood"].rows > 0  # the version of one bit and the new one, both asked with features


def test_a_version_that_is_not_better_stays(home, no_encoder):
    """Also the comparison reads no text; a live version that reads other features cannot be compared."""
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder), trunk=trunk)
    train_project(project(folder, "mood"), folder=folder, features=folder / "store")
    worse = project(
        folder, "mood", training=msgspec.structs.replace(tiny_project.TRAINING, epochs=1, learning_rate=1e-9)
    )
    outcome = train_project(worse, folder=folder, features=folder / "store", if_better=True)
    assert "not better" in outcome.left["mood"] and not outcome.trained
    make_store(str(folder / "other"), texts_of(folder), stored_path(trunk, codec=Codec()), trunk=trunk)
    lines = []
    train_project(project(folder, "mood"), folder=folder, features=folder / "other", events=Events(say=lines.append))
    assert any("not compared with" in line and "could not both be asked" in line for line in lines), lines
    with pytest.raises(StoreError, match="another codec"):
        train_project(worse, folder=folder, features=folder / "store", if_better=True)


def test_a_store_needs_a_recipe_that_leaves_the_trunk_as_it_is(home):
    folder, _ = home
    with pytest.raises(ConfigError, match="frozen trunk"):
        declared = msgspec.structs.replace(project(folder, "mood"), recipe=Joint())
        train_project(declared, folder=folder, features=folder / "store")
    with pytest.raises(StoreError, match="store"):
        train_project(project(folder, "mood"), folder=folder, features=folder / "store")


def test_words_of_long_texts_are_read_in_the_windows_of_the_store(home):
    """The same heads as from texts, though a text is several documents of the store."""
    folder, _ = home
    short = load_trunk(str(folder / "trunk"), max_tokens=8)
    kept = stored_path(short, codec=Codec(name="float32"))
    make_store(
        str(folder / "store"), texts_of(folder), kept, trunk=short, source={"long_texts": "windows"}, windows=True
    )
    strategy = msgspec.structs.replace(STRATEGY, codec="float32")
    scores = {}
    for name, features in (("texts", None), ("stored", folder / "store")):
        declared = project(folder, "names", strategy=strategy, max_tokens=8, long_texts="windows")
        train_project(msgspec.structs.replace(declared, bundle=name), folder=folder, features=features)
        scores[name] = Bundle.open(folder / name).part("names")
    for key, array in scores["texts"].items():
        np.testing.assert_allclose(scores["stored"][key], array, atol=2e-3, err_msg=key)


def test_a_second_run_over_the_same_store_trains_nothing(home):
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder), trunk=trunk)
    first = train_project(project(folder, "mood"), folder=folder, features=folder / "store")
    again = train_project(project(folder, "mood"), folder=folder, features=folder / "store")
    assert set(first.trained) == {"mood"} and again.kept == ("mood",) and not again.trained
    other = train_project(project(folder, "mood"), folder=folder)  # of texts: float16, and so another part
    assert set(other.trained) == {"mood"}


def test_a_run_that_was_stopped_while_it_copied_ends_as_if_it_had_not_been(home, monkeypatch):
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder), trunk=trunk)
    monkeypatch.setattr(stored, "AT_ONCE", 5)
    inner, calls = stored.StoredFeatures._copy, []

    def stopping(self, request, indices, *ids):
        calls.append(len(indices))
        if len(calls) == 3:
            raise KeyboardInterrupt
        inner(self, request, indices, *ids)

    monkeypatch.setattr(stored.StoredFeatures, "_copy", stopping)
    with pytest.raises(KeyboardInterrupt):
        train_project(project(folder, "names"), folder=folder, features=folder / "store")
    train_project(project(folder, "names"), folder=folder, features=folder / "store")
    whole = msgspec.structs.replace(project(folder, "names"), bundle="whole")
    train_project(whole, folder=folder, features=folder / "store")
    assert tiny_project.part_bytes(folder / "bundle", "names") == tiny_project.part_bytes(folder / "whole", "names")
    copied = calls[0] + calls[1]
    texts = len({join_tokens(row["tokens"])[0] for row in rows_of(folder, "messages")})
    assert copied == 10 and sum(calls[3 : 3 + -(-(texts - copied) // 5)]) <= texts - copied + 5  # nothing twice


def test_texts_are_hashed_as_often_whatever_number_is_copied_at_a_time(home, monkeypatch):
    """All texts of a task were hashed again for every piece of them."""
    folder, trunk = home
    path, inputs = stored_path(trunk), texts_of(folder)
    make_store(str(folder / "store"), inputs, path, trunk=trunk)
    counts, hashed = [], stored.window_id

    def counting(text, window):
        counts[-1] += 1
        return hashed(text, window)

    monkeypatch.setattr(stored, "window_id", counting)
    for at_once in (len(inputs), 3):
        monkeypatch.setattr(stored, "AT_ONCE", at_once)
        counts.append(0)
        source = StoredFeatures(str(folder / "store"), trunk.facts, folder=folder / str(at_once), precision="float32")
        source.fill([FeatureRequest(path=path, inputs=inputs)])
        assert not source.store(path).missing([document_id(text) for text in inputs])
    assert counts[0] == counts[1]


def test_a_task_of_features_in_int8_is_answered_beside_others_without_scales(home):
    """The bundle has no scales of int8: torch failed, as did each proof, so the bundle could not be changed."""
    folder, trunk = home
    for precision in ("int8", "float32"):
        make_store(str(folder / precision), texts_of(folder), trunk=trunk, source={"precision": precision})
    auto = msgspec.structs.replace(tiny_project.TRAINING, precision="auto")
    train_project(project(folder, "mood", training=auto), folder=folder, features=folder / "int8")
    assert Bundle.open(folder / "bundle").tasks["mood"].trained_with["numerics"]["precision"] == "int8"
    text = rows_of(folder, "messages")[0]["text"]
    answers = [
        Session(folder / "bundle", backend=name).predict([text])[0].answers["mood"] for name in ("torch", "reference")
    ]
    assert answers[0]["scores"] == pytest.approx(answers[1]["scores"], abs=1e-4)
    train_project(project(folder, "topics", training=auto), folder=folder, features=folder / "float32")
    assert set(Session(folder / "bundle").predict([text])[0].answers) == {"mood", "topics"}
    assert verify(folder / "bundle") == []


def test_the_trunk_may_be_that_of_another_bundle(home, monkeypatch, no_encoder):
    """Its digest is known without its weights, so a store that does not fit is refused before they are read."""
    folder, trunk = home
    make_store(str(folder / "store"), texts_of(folder), trunk=trunk)
    make_store(str(folder / "other"), texts_of(folder)[:3], trunk=tiny_trunk(seed=5))
    write_bundle(folder / "base", trunk)
    declared = project(folder, "mood")
    declared = msgspec.structs.replace(declared, trunk=TrunkChoice(name=str(folder / "base")))
    with monkeypatch.context() as context:
        context.setattr(Bundle, "trunk", no_encoder)
        with pytest.raises(StoreError, match="another trunk"):
            train_project(declared, folder=folder, features=folder / "other")
    train_project(declared, folder=folder, features=folder / "store")
    assert Bundle.open(folder / "bundle").digest == trunk.digest
    longer = msgspec.structs.replace(declared, trunk=TrunkChoice(name=str(folder / "base"), max_tokens=12))
    with pytest.raises(WrongTrunk, match="another max_tokens"):
        train_project(longer, folder=folder, features=folder / "store")


def test_another_number_of_tokens_than_the_tokenizer_gives_is_refused(home):
    """A store of this trunk's digest that somebody filled with features of other texts under these ids."""
    folder, trunk = home
    inputs = texts_of(folder)
    path = stored_path(trunk)
    place = create_corpus(str(folder / "store"), make_store(str(folder / "whole"), inputs, path, trunk=trunk).schema)
    digest = place.schema.features[0].digest
    rows = open_corpus(str(folder / "whole")).take([document_id(text) for text in inputs], digest)
    place.append([document_id(text) for text in inputs], {digest: rows.take(np.roll(np.arange(len(inputs)), 1))})
    with pytest.raises(StoreError, match="another number of tokens than the tokenizer gives"):
        train_project(project(folder, "names"), folder=folder, features=folder / "store")
