"""`polyhead init` on many small tables: names, kinds and languages of columns, and what a reader would say of each."""

import csv
import io
import json
import tomllib

import pytest

from support.cases import cases
from support.commands import run

PLACES = ["kitchen", "garden", "window", "station", "harbour", "office", "bridge", "market"]
ENGLISH = [f"the {a} near the {b} was closed again" for i, a in enumerate(PLACES) for b in PLACES[: i or 1]][:24]
GERMAN = [text.replace("the", "das").replace("was closed again", "war wieder zu") for text in ENGLISH]
RUSSIAN = [f"магазин номер {i} снова закрыт" for i in range(24)]
CHINESE = [f"第{i}家商店今天又关门了" for i in range(24)]
SHORT = [f"{a} {b}" for a in PLACES[:5] for b in PLACES[:5]][:24]
OTHERS = [f"somebody said that number {i} is still open" for i in range(24)]
LONG = [f"{text}. {other}. {text} and then {other}." for text, other in zip(ENGLISH, OTHERS, strict=True)]
REPEATED = [ENGLISH[i // 2] for i in range(24)]
NAMES = [f"Title {i}" for i in range(24)]


def often(*values):
    """The values again and again, 24 in all."""
    return [values[i % len(values)] for i in range(24)]


def table(**columns):
    return columns


def said(kind, text, label, **more):
    """What the task's table must hold; `text` is a column, or the two of a pair."""
    texts = {"text": text} if isinstance(text, str) else {"text": text[0], "text_b": text[1]}
    return {"kind": kind, **texts, **({"label": label} if label else {}), **more}


def asks(*words):
    """What the refusal must say."""
    return words


ONE, SEVERAL, NUMBER = "single_label", "multi_label", "regression"
TABLES = {
    # names of texts and labels
    "text, label": (table(text=ENGLISH, label=often("a", "b")), said(ONE, "text", "label")),
    "label first": (table(label=often("a", "b"), text=ENGLISH), said(ONE, "text", "label")),
    "capitals": (table(Text=ENGLISH, Label=often("a", "b")), said(ONE, "Text", "Label")),
    "review, sentiment": (table(review=LONG, sentiment=often("pos", "neg")), said(ONE, "review", "sentiment")),
    "tweet, airline beside target": (
        table(tweet_id=range(24), tweet=ENGLISH, target=often(0, 1)),
        said(ONE, "tweet", "target"),
    ),
    "utterance, intent": (
        table(utterance=SHORT, intent=often("book", "cancel", "ask")),
        said(ONE, "utterance", "intent"),
    ),
    "unknown names": (table(aa=ENGLISH, bb=often("x", "y", "z")), said(ONE, "aa", "bb")),
    "German names": (table(Nachricht=GERMAN, Kategorie=often("Lob", "Kritik")), said(ONE, "Nachricht", "Kategorie")),
    "Russian names": (table(текст=RUSSIAN, класс=often("да", "нет")), said(ONE, "текст", "класс")),
    "Chinese names": (table(文本=CHINESE, 标签=often("好", "坏")), said(ONE, "文本", "标签")),
    "an index without a name": ({"": range(24), "text": ENGLISH, "mood": often("a", "b")}, said(ONE, "text", "mood")),
    "an id of letters": (
        table(id=[f"r{i}" for i in range(24)], text=ENGLISH, label=often("a", "b")),
        said(ONE, "text", "label"),
    ),
    "title and body": (table(title=NAMES, body=LONG, label=often("a", "b")), said(ONE, "body", "label")),
    "a review that is the label": (table(story=LONG, review=often("good", "bad")), said(ONE, "story", "review")),
    "a comment beside the text": (
        table(text=ENGLISH, comment=OTHERS, label=often("a", "b")),
        said(ONE, "text", "label"),
    ),
    "a text that repeats": (table(text=REPEATED, label=often("a", "b")), said(ONE, "text", "label")),
    "a text that repeats, unknown label": (table(text=REPEATED, mood=often("a", "b")), said(ONE, "text", "mood")),
    "short texts": (table(text=SHORT, label=often("a", "b")), said(ONE, "text", "label")),
    "a date beside": (
        table(day=often("2024-01-01", "2024-01-02"), text=ENGLISH, mood=often("a", "b")),
        said(ONE, "text", "mood"),
    ),
    "a split beside": (
        table(text=ENGLISH, mood=often("a", "b"), split=often("train", "test")),
        said(ONE, "text", "mood"),
    ),
    "a user's number beside": (
        table(user_id=often(17, 18, 19, 44, 51), text=ENGLISH, mood=often("a", "b")),
        said(ONE, "text", "mood"),
    ),
    "names with spaces": ({" text": ENGLISH, " label ": often("a", "b")}, said(ONE, " text", " label ")),
    "the id of a class": (table(text=ENGLISH, label_id=often(0, 1, 2)), said(ONE, "text", "label_id")),
    "the id of a class alone": (table(text=ENGLISH, intent_id=often(3, 4)), said(ONE, "text", "intent_id")),
    "an id beside its class": (
        table(text=ENGLISH, category_id=often(7, 8), category=often("a", "b")),
        said(ONE, "text", "category"),
    ),
    "a number and its name": (
        table(text=ENGLISH, label=often(0, 1), label_text=often("neg", "pos")),
        said(ONE, "text", "label"),
    ),
    "the class of a set": (table(sentence=ENGLISH, label=often(0, 1), idx=range(24)), said(ONE, "sentence", "label")),
    # pairs
    "a second comment in few rows": (
        table(comment=ENGLISH, comment2=[OTHERS[i] if i % 6 == 0 else "" for i in range(24)], mood=often("a", "b")),
        said(ONE, "comment", "mood"),
    ),
    "text, text_b, the first repeats": (
        table(text=REPEATED, text_b=OTHERS, label=often("a", "b")),
        said(ONE, ("text", "text_b"), "label"),
    ),
    "text, text_b, both repeat": (
        table(text=REPEATED, text_b=often(*OTHERS[:3]), label=often("a", "b")),
        said(ONE, ("text", "text_b"), "label"),
    ),
    "text_a, text_b": (
        table(text_a=REPEATED, text_b=OTHERS, same=often(0, 1)),
        said(ONE, ("text_a", "text_b"), "same"),
    ),
    "text1, text2": (table(text1=REPEATED, text2=OTHERS, y=often(0, 1)), said(ONE, ("text1", "text2"), "y")),
    "text, text2": (table(text=REPEATED, text2=OTHERS, y=often(0, 1)), said(ONE, ("text", "text2"), "y")),
    "sentence1, sentence2": (
        table(sentence1=REPEATED, sentence2=OTHERS, score=[round(i / 7, 2) for i in range(24)]),
        said(NUMBER, ("sentence1", "sentence2"), "score"),
    ),
    "sentence_A, sentence_B": (
        table(pair_ID=range(24), sentence_A=ENGLISH, sentence_B=OTHERS, relatedness=[1 + i / 6 for i in range(24)]),
        said(NUMBER, ("sentence_A", "sentence_B"), "relatedness"),
    ),
    "premise, hypothesis": (
        table(premise=REPEATED, hypothesis=OTHERS, label=often("entails", "neutral")),
        said(ONE, ("premise", "hypothesis"), "label"),
    ),
    "query, document": (
        table(query=often("shop", "open"), document=LONG, relevant=often(0, 1)),
        said(ONE, ("query", "document"), "relevant"),
    ),
    "claim, evidence": (
        table(claim=REPEATED, evidence=LONG, verdict=often("true", "false", "open")),
        said(ONE, ("claim", "evidence"), "verdict"),
    ),
    "question1, question2": (
        table(qid1=range(24), qid2=range(24, 48), question1=ENGLISH, question2=OTHERS, is_duplicate=often(0, 1)),
        said(ONE, ("question1", "question2"), "is_duplicate"),
    ),
    "two annotators are no pair": (
        table(text=ENGLISH, rater1=often("a", "b"), rater2=often("a", "b", "a")),
        asks("rater1", "rater2", "--label rater1"),
    ),
    # numbers and codes
    "0 and 1": (table(text=ENGLISH, spam=often(0, 1)), said(ONE, "text", "spam", labels=["0", "1"])),
    "0 to 3": (table(text=ENGLISH, label=often(0, 1, 2, 3)), said(ONE, "text", "label")),
    "0.0 and 1.0 beside an empty cell": (
        table(text=ENGLISH, spam=often("0.0", "1.0", "")),
        said(ONE, "text", "spam", labels=["0", "1"]),
    ),
    "true and false": (table(text=ENGLISH, late=often("True", "False")), said(ONE, "text", "late")),
    "stars": (
        table(text=ENGLISH, stars=often(1, 2, 3, 4, 5)),
        asks("stars", "--kind regression", "--kind single_label"),
    ),
    "half stars": (table(text=ENGLISH, stars=often("1.5", "2.0", "4.5")), asks("stars", "--kind regression")),
    "a score": (table(text=ENGLISH, score=[round(i / 23, 3) for i in range(24)]), said(NUMBER, "text", "score")),
    "a price": (table(text=ENGLISH, price=[round(3 + i * 1.37, 2) for i in range(24)]), said(NUMBER, "text", "price")),
    "temperatures": (table(text=ENGLISH, degrees=[i - 11.5 for i in range(24)]), said(NUMBER, "text", "degrees")),
    "codes of diseases": (table(text=ENGLISH, icd=often("007.1", "250.00", "401.9")), said(ONE, "text", "icd")),
    "codes of industries": (table(text=ENGLISH, industry=often("01", "02", "12")), said(ONE, "text", "industry")),
    "versions": (table(text=ENGLISH, release=often("1.1", "1.10", "2.0")), said(ONE, "text", "release")),
    "versions of three parts": (table(text=ENGLISH, since=often("1.1.0", "1.10.2")), said(ONE, "text", "since")),
    "postcodes": (table(text=ENGLISH, zip=often(10115, 80331, 20095)), said(ONE, "text", "zip")),
    "postcodes by another name": (table(text=ENGLISH, area=often(10115, 80331, 20095)), asks("area", "--kind")),
    "telephone numbers": (table(text=ENGLISH, desk=often("+493012345", "+493054321")), said(ONE, "text", "desk")),
    "a decimal comma": (
        table(text=ENGLISH, score=[f"{i},5" for i in range(24)]),
        asks("score", "decimal comma", "with a point"),
    ),
    "a decimal comma, few values": (table(text=ENGLISH, note=often("1,5", "2,0")), asks("note", "decimal comma")),
    "codes between commas": (
        table(text=ENGLISH, industries=often("01,02", "02", "01,03", "03")),
        said(SEVERAL, "text", "industries", separator=",", labels=["01", "02", "03"]),
    ),
    "marks between thousands": (
        table(text=ENGLISH, salary=[f"{i + 1}.{i * 37 + 100}" for i in range(24)]),
        asks("salary", "thousands"),
    ),
    # several labels
    "labels with a semicolon": (
        table(text=ENGLISH, topics=often("a; b", "b", "a; c")),
        said(SEVERAL, "text", "topics", separator=";", labels=["a", "b", "c"]),
    ),
    "labels with a comma": (
        table(text=ENGLISH, tags=often("a, b", "b, c", "a, c", "b")),
        said(SEVERAL, "text", "tags", separator=","),
    ),
    "labels with a bar, perhaps": (table(text=ENGLISH, topic=often("a|b", "c")), asks("topic", "--kind multi_label")),
    "names with a comma": (
        table(text=ENGLISH, topic=often("Food, drink", "Arts, culture", "Sport")),
        said(ONE, "text", "topic"),
    ),
    "lists": (table(text=ENGLISH, topics=often(["a"], ["a", "b"], [])), said(SEVERAL, "text", "topics")),
    "columns of 0 and 1": (
        table(text=ENGLISH, late=often(0, 1), broken=often(1, 0, 1, 1, 0)),
        said(SEVERAL, "text", None, soft=["late", "broken"]),
    ),
    "one of several columns": (
        table(text=ENGLISH, late=often(0, 1), fine=often(1, 0)),
        said(ONE, "text", None, soft=["late", "fine"]),
    ),
    # words and questions
    "tokens, ner_tags": (
        table(tokens=[["Ann", name] for name in NAMES], ner_tags=often(["B-per", "O"])),
        table(kind="tagging", tokens="tokens", tags="ner_tags"),
    ),
    "spans": (
        table(text=ENGLISH, spans=often([{"start": 0, "end": 3, "label": "x"}], [])),
        table(kind="tagging", text="text", spans="spans"),
    ),
    "a question with options": (
        table(question=ENGLISH, choices=often(["yes", "no"]), label=often(0, 1)),
        table(kind="multiple_choice", text="question", label="label"),
    ),
    "answers in a context": (
        table(question=OTHERS, context=ENGLISH, answers=[[{"text": text[:3], "start": 0}] for text in ENGLISH]),
        table(kind="span", text="question", text_b="context", answers="answers"),
    ),
    # nothing to guess
    "two labels alike": (
        table(text=ENGLISH, mood=often("a", "b"), size=often("s", "m")),
        asks("mood, size", "--label mood"),
    ),
    "no label": (table(text=ENGLISH, other=OTHERS), asks("looks like a label", "--label")),
    "one label alone": (table(text=ENGLISH, mood=often("good")), asks("the same 'mood'", "good", "at least 2")),
    "one label alone in four rows": (table(text=often("a b", "c d")[:4], mood=["good"] * 4), asks("the same 'mood'")),
    "no text": (table(n=range(24), label=often("a", "b")), asks("looks like the text", "--text")),
    "two texts of other names": (
        table(aa=ENGLISH, bb=OTHERS, label=often("a", "b")),
        asks("--text aa", "--text bb", "--text-b bb"),
    ),
}


def content_of(columns, ending):
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if ending == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=";" if ending == "csv" else "\t", lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([json.dumps(cell) if isinstance(cell, list) else cell for cell in row.values()])
    return file.getvalue()


@pytest.mark.slow
@cases("columns, wanted", TABLES.values(), ids=TABLES)
def test_init_says_of_a_table_what_a_reader_would(tmp_path, columns, wanted):
    """Or asks. None is taken for something else."""
    for ending in ("csv", "jsonl"):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / f"x.{ending}").write_text(content_of(columns, ending), encoding="utf-8")
        done = run("init", f"x.{ending}", cwd=folder)
        if isinstance(wanted, tuple):
            done.refuses(f"x.{ending}", *wanted)
            continue
        assert done.code == 0, done.err
        (entry,) = tomllib.loads((folder / "polyhead.toml").read_text(encoding="utf-8"))["tasks"]
        assert {key: entry.get(key) for key in wanted} == wanted, ending
        assert ("text_b" in entry) == ("text_b" in wanted), entry


def test_there_are_many_tables():
    assert len(TABLES) >= 60
