"""What exports of annotation tools say, and what is read: each rule of docs/project/exports.md, worked by hand."""

import gzip
import json
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from polyhead.data.formats import ANNOTATIONS, RecordFormat, register_annotations
from polyhead.data.formats.docbin import hash_of
from polyhead.data.rows import Rows
from polyhead.data.tables.hub import with_names
from polyhead.errors import BadValue, DataError

PAGE = Path(__file__).parents[2] / "docs" / "project" / "exports.md"


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def spans(*places):
    return [dict(zip(("start", "end", "label"), place, strict=True)) for place in places]


def studio(text, *results, more=(), **data):
    """A record of Label Studio with one annotation."""
    return {"data": {"text": text, **data}, "annotations": [{"result": list(results)}, *more], "predictions": []}


def result(kind, name="ner", to="text", **value):
    return {"type": kind, "from_name": name, "to_name": to, "value": value}


def region(start, end, text, *labels):
    value = {"start": start, "end": end, "labels": list(labels)}
    return result("labels", **value, **({} if text is None else {"text": text}))


def short(**columns):
    return {**columns, "annotator": 1, "annotation_id": columns["id"], "lead_time": 2.5}


def argilla(text="good lamp", **responses):
    return {"fields": {"text": text}, "responses": responses, "suggestions": {"mood": {"value": "bad"}}, "status": "x"}


def said(value, status="submitted"):
    return {"value": value, "user_id": "u", "status": status}


def bin_of(*documents, cats=()):
    """DocBin's bytes: each document is its words with a mark and a label each, spaces between them."""
    attributes = [65, 77, 78]
    tokens = [(word, mark, label) for document in documents for word, mark, label in document]
    packed = {
        "version": "0.1",
        "attrs": attributes,
        "tokens": b"".join(struct.pack("<3Q", hash_of(word), mark, hash_of(label)) for word, mark, label in tokens),
        "spaces": b"".join(b"\1" * (len(document) - 1) + b"\0" for document in documents),
        "lengths": b"".join(struct.pack("<i", len(document)) for document in documents),
        "strings": sorted({text for word, _, label in tokens for text in (word, label)}),
        "cats": list(cats) or [{} for _ in documents],
        "flags": [{"has_unknown_spaces": False} for _ in documents],
    }
    import msgspec

    return zlib.compress(msgspec.msgpack.encode(packed))


ANNA = {"text": "Anna", "spans": spans((0, 4, "per"))}
ROWS = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
WIDE = "👍👍 ship it to Oslo please"
OSLO = {"text": WIDE, "ner": spans((14, 18, "LOC"))}
REFUSED = "refused"
OPTIONS = [{"id": "A", "text": "first"}, {"id": "B", "text": "second"}]
TREE = {"context": "Ben came. Ann went.", "qas": []}

# (format, what the export says) -> the file's name, its content, and the rows, or the rows that are refused and words
# of the message. A dict as content is a folder.
RULES = {
    ("Label Studio", "an offset after an emoji"): ("x.json", [studio(WIDE, region(16, 20, "Oslo", "LOC"))], [OSLO]),
    ("Label Studio", "an offset after line ends of Windows"): (
        "x.json",
        [studio("one\r\ntwo\r\nOslo it is", region(8, 12, "Oslo", "LOC"))],
        [{"ner": spans((10, 14, "LOC"))}],
    ),
    ("Label Studio", "a region whose `text` stands elsewhere"): (
        "x.json",
        [studio("in Oslo", region(3, 7, "Oslo", "LOC")), studio("in Oslo", region(0, 4, "Oslo", "LOC"))],
        (REFUSED, [2], "x.json row 2", "Got: Oslo"),
    ),
    ("Label Studio", "a region without `text`"): ("x.json", [studio(WIDE, region(16, 20, None, "LOC"))], [OSLO]),
    ("Label Studio", "a region of HTML, sound or time"): (
        "x.json",
        [
            studio(
                "<p>Oslo</p>", result("hypertextlabels", start="/p[1]/text()[1]", end="/p[1]", hypertextlabels=["L"])
            ),
            studio("s.wav", region(0.5, 1.5, None, "noise")),
            studio("in Oslo", region(3, 7, "Oslo", "LOC")),
        ],
        (REFUSED, [1, 2], "no span of a plain text"),
    ),
    ("Label Studio", "a region with two labels"): (
        "x.json",
        [studio("in Oslo", region(3, 7, "Oslo", "LOC", "CITY"))],
        [{"ner": spans((3, 7, "LOC"), (3, 7, "CITY"))}],
    ),
    ("Label Studio", "an annotated text without regions"): (
        "x.json",
        [studio("none"), studio("in Oslo", region(3, 7, "Oslo", "LOC"))],
        [{"text": "none", "ner": []}, {"ner": spans((3, 7, "LOC"))}],
    ),
    ("Label Studio", "a path in a taxonomy"): (
        "x.json",
        [
            studio("a", result("taxonomy", "topic", taxonomy=[["Hardware", "Other"]])),
            studio("b", result("taxonomy", "topic", taxonomy=[["Software", "Other"]])),
            studio("c", result("taxonomy", "topic", taxonomy=[["Software"]])),
        ],
        [{"topic": ["Hardware > Other"]}, {"topic": ["Software > Other"]}, {"topic": ["Software"]}],
    ),
    ("Label Studio", "several choices or paths"): (
        "x.json",
        [
            studio("a", result("choices", "mood", choices=["x", "y"]), result("choices", "mood", choices=["y", "z"])),
            studio("b", result("taxonomy", "topic", taxonomy=[["A", "B"], ["A", "C"]])),
            studio("c", result("choices", "mood", choices=[["A", "B"], "C"])),
        ],
        [{"mood": ["x", "y", "z"]}, {"topic": ["A > B", "A > C"]}, {"mood": ["A > B", "C"]}],
    ),
    ("Label Studio", "a rating or number"): (
        "x.json",
        [studio("a", result("rating", "stars", rating=4), result("number", "n", number=0))],
        [{"stars": 4, "n": 0}],
    ),
    ("Label Studio", "the better one of a pair"): (
        "x.json",
        [studio("a", result("pairwise", "better", selected="left"), text_b="b")],
        [{"text": "a", "text_b": "b", "better": "left"}],
    ),
    ("Label Studio", "several controls"): (
        "x.json",
        [studio("Anna", region(0, 4, "Anna", "per"), result("choices", "mood", choices=["good"]))],
        [{"text": "Anna", "ner": spans((0, 4, "per")), "mood": ["good"]}],
    ),
    ("Label Studio", "a control that is called as a column of the data"): (
        "x.json",
        [studio("a", result("choices", "label", choices=["good"]), label="old")],
        [{"label": "old", "label.label": ["good"]}],
    ),
    ("Label Studio", "a choice about one region"): (
        "x.json",
        [studio("Anna", result("choices", "mood", start=0, end=4, text="Anna", choices=["good"]))],
        [{"text": "Anna"}, "answers about a part of a text or an image, left out"],
    ),
    ("Label Studio", "relations, images"): (
        "x.json",
        [studio("a", {"type": "relation", "from_id": "1", "to_id": "2"}, result("rectanglelabels", x=1, y=2))],
        [{"text": "a"}, "results of type 'relation', left out"],
    ),
    ("Label Studio", "several annotations of a text"): (
        "x.json",
        [
            studio(
                "a",
                result("choices", "mood", choices=["x"]),
                more=[{"ground_truth": True, "result": [result("choices", "mood", choices=["y"])]}],
            ),
            studio(
                "b",
                result("choices", "mood", choices=["x"]),
                more=[{"result": [result("choices", "mood", choices=["y"])]}],
            ),
        ],
        [{"mood": ["y"]}, {"mood": ["x"]}, "texts with several annotations, of which one is read"],
    ),
    ("Label Studio", "a cancelled or skipped annotation"): (
        "x.json",
        [
            {"data": {"text": "a"}, "annotations": [{"was_cancelled": True, "result": [region(0, 1, "a", "x")]}]},
            studio("b", region(0, 1, "b", "x")),
        ],
        [{"text": "a", "ner": None}, {"ner": spans((0, 1, "x"))}, "texts without an annotation, left out"],
    ),
    ("Label Studio", "predictions and drafts"): (
        "x.json",
        [
            {
                "data": {"text": "a"},
                "annotations": [],
                "drafts": [{"result": [result("choices", "mood", choices=["x"])]}],
                "predictions": [{"result": [result("choices", "mood", choices=["x"])]}],
            },
            studio("b", result("choices", "mood", choices=["y"])),
        ],
        [{"text": "a", "mood": None}, {"text": "b", "mood": ["y"]}],
    ),
    ("Label Studio", "completions, as old versions wrote"): (
        "x.json",
        [{"data": {"text": "in Oslo"}, "completions": [{"result": [region(3, 7, "Oslo", "LOC")]}]}],
        [{"text": "in Oslo", "ner": spans((3, 7, "LOC"))}],
    ),
    ("Label Studio", "JSON-MIN: spans, one choice, several choices, taxonomy, rating"): (
        "x.json",
        [
            short(
                id=1,
                text=WIDE,
                ner=[{"start": 16, "end": 20, "text": "Oslo", "labels": ["LOC"]}],
                mood="good",
                tags={"choices": ["a", "b"]},
                topic=[{"taxonomy": [["A", "B"]]}],
                stars=[{"rating": 3}],
            ),
            short(id=2, text="nowhere", mood="bad"),
        ],
        [
            {**OSLO, "mood": "good", "tags": ["a", "b"], "topic": ["A > B"], "stars": 3, "annotator": None},
            {"text": "nowhere", "ner": [], "mood": "bad"},
        ],
    ),
    ("Label Studio", "JSON-MIN: a second annotation of a text"): (
        "x.json",
        [short(id=1, text="a", mood="x"), {**short(id=1, text="a", mood="y"), "annotation_id": 7}],
        [{"text": "a", "mood": "x"}, "further annotations of a text, left out"],
    ),
    ("Label Studio", "CSV: spans or choices as JSON in a cell"): (
        "x.csv",
        "text,id,ner,mood,annotator,annotation_id,lead_time\n"
        '👍 Oslo,1,"[{""start"": 3, ""end"": 7, ""text"": ""Oslo"", ""labels"": [""LOC""]}]",good,2,3,4.5\n'
        'b,2,[],"{""choices"": [""x"", ""y""]}",2,4,4.5\n'
        "c,3,[],,2,5,4.5\n",
        [
            {"text": "👍 Oslo", "ner": spans((2, 6, "LOC")), "mood": ["good"]},
            {"ner": [], "mood": ["x", "y"]},
            {"text": "c", "mood": None},
        ],
    ),
    ("doccano", "`label` or `labels` with `[start, end, label]`"): (
        "x.jsonl",
        lines({"id": 1, "text": "Anna", "label": [[0, 4, "per"]]}, {"id": 2, "text": "b", "label": []}),
        [{**ANNA, "id": 1, "label": None}, {"text": "b", "spans": []}],
    ),
    ("doccano", "`start_offset` and `end_offset` in objects"): (
        "x.jsonl",
        lines({"text": "Anna", "entities": [{"id": 3, "start_offset": 0, "end_offset": 4, "label": "per"}]}),
        [ANNA],
    ),
    ("doccano", "an offset after an emoji"): (
        "x.jsonl",
        lines(
            {"text": "👍 to Oslo please", "label": [[6, 10, "LOC"]]},
            {"text": "👍 to Oslo please", "label": [[5, 9, "LOC"]]},
        ),
        [{"spans": spans((5, 9, "LOC"))}] * 2,
    ),
    ("doccano", "such an offset where both readings do, or none"): (
        "x.jsonl",
        lines({"text": "👍👍 a b c", "label": [[5, 6, "X"]]}, {"text": "👍北京很好", "label": [[2, 4, "LOC"]]}),
        (REFUSED, [1, 2], "nobody can tell what a span covers"),
    ),
    ("doccano", "relations"): (
        "x.jsonl",
        lines({"text": "Anna", "label": [[0, 4, "per"]], "relations": [{"id": 1}]}),
        [{**ANNA, "relations": None}, "texts with relations, which are left out"],
    ),
    ("doccano", '`label: ["a"]`'): ("x.jsonl", lines({"text": "a", "label": ["x"]}), [{"text": "a", "label": ["x"]}]),
    ("Prodigy", "the answer is reject or ignore"): (
        "x.jsonl",
        lines(
            {**ANNA, "answer": "accept"}, {**ANNA, "answer": "reject"}, {**ANNA, "answer": "ignore", "_task_hash": 3}
        ),
        [ANNA, {"text": "Anna", "spans": None}, {"spans": None}, "records with the answer 'reject', left out"],
    ),
    ("Prodigy", "no answer"): (
        "x.jsonl",
        lines({**ANNA, "answer": "accept"}, ANNA),
        [ANNA, {"text": "Anna", "spans": None}, "records without an answer, left out"],
    ),
    ("Prodigy", "accepted without `spans`, where others have them"): (
        "x.jsonl",
        lines({"text": "It rains", "answer": "accept"}, {**ANNA, "answer": "accept", "tokens": [{"text": "Anna"}]}),
        [{"text": "It rains", "spans": []}, {**ANNA, "tokens": None}],
    ),
    ("Prodigy", '`accept: ["A", "B"]` of `options`'): (
        "x.jsonl",
        lines({"text": "a", "options": OPTIONS, "accept": ["A", "B"], "answer": "accept"}),
        [{"text": "a", "label": ["A", "B"], "options": None, "answer": None}],
    ),
    ("Prodigy", "`accept: []` of an accepted record"): (
        "x.jsonl",
        lines({"text": "a", "options": OPTIONS, "accept": [], "answer": "accept"}),
        [{"text": "a", "label": []}],
    ),
    ("Prodigy", "ids of options that are numbers"): (
        "x.jsonl",
        lines({"text": "a", "options": [{"id": 0, "text": "no"}], "accept": [0], "answer": "accept"}),
        [{"label": ["no"]}],
    ),
    ("Prodigy", "one proposed `label`, the same in every record"): (
        "x.jsonl",
        lines(
            {"text": "a", "label": "SPAM", "answer": "accept", "_task_hash": 1},
            {"text": "b", "label": "SPAM", "answer": "reject", "_task_hash": 2},
            {"text": "c", "label": "SPAM", "answer": "ignore", "_task_hash": 3},
        ),
        [{"label": ["SPAM"]}, {"label": []}, {"label": None}],
    ),
    ("Prodigy", "one proposed `label` of several"): (
        "x.jsonl",
        lines({"text": "a", "label": "SPAM", "answer": "accept"}, {"text": "b", "label": "HAM", "answer": "reject"}),
        [{"label": ["SPAM"]}, {"label": None}, "records with the answer 'reject', left out"],
    ),
    ("spaCy", "`cats`"): (
        "x.jsonl",
        lines({"text": "a", "cats": {"x": 1, "y": 0, "z": True}}, {"text": "b", "cats": {"x": 0, "y": 0, "z": 0.0}}),
        [{"text": "a", "labels": ["x", "z"]}, {"text": "b", "labels": []}],
    ),
    ("spaCy", "a score in `cats`"): (
        "x.jsonl",
        lines({"text": "a", "cats": {"x": 0.7, "y": 0.3}}),
        [{"labels": ["x"]}, "texts with scores between 0 and 1, read as labels from 0.5 on"],
    ),
    ("spaCy", "empty `cats`"): (
        "x.jsonl",
        lines({"text": "a", "cats": {}}, {"text": "b", "cats": {"x": 1}}),
        [{"labels": None}, {"labels": ["x"]}],
    ),
    ("spaCy", "`entities` as lists"): (
        "x.json",
        [["👍 Oslo", {"entities": [[2, 6, "LOC"]]}]],
        [{"text": "👍 Oslo", "spans": spans((2, 6, "LOC"))}],
    ),
    ("spaCy", "pairs of a text and its notes"): (
        "x.json",
        [["Anna", {"entities": [[0, 4, "per"]], "cats": {"x": 1}}], ["b", {"entities": []}]],
        [{**ANNA, "labels": ["x"]}, {"text": "b", "spans": []}],
    ),
    ("spaCy", "`.spacy` (DocBin)"): (
        "x.spacy",
        bin_of(
            [("in", 2, ""), ("New", 3, "LOC"), ("York", 1, "LOC"), ("👍", 2, "")],
            [("Ben", 3, "PER"), ("Ann", 3, "PER")],
            cats=[{"x": 1.0, "y": 0.0}, {"x": 0.0, "y": 0.0}],
        ),
        [
            {"text": "in New York 👍", "spans": spans((3, 11, "LOC")), "labels": ["x"]},
            {"text": "Ben Ann", "spans": spans((0, 3, "PER"), (4, 7, "PER")), "labels": []},
        ],
    ),
    ("spaCy", "`.spacy` without entities of a document"): (
        "x.spacy",
        bin_of([("it", 0, ""), ("rains", 0, "")], [("it", 2, ""), ("pours", 2, "")]),
        [{"text": "it rains", "spans": None}, {"text": "it pours", "spans": []}],
    ),
    ("spaCy", "`.spacy` with an entity that goes on and did not begin"): (
        "x.spacy",
        bin_of([("New", 3, "LOC"), ("in", 2, ""), ("York", 1, "LOC")], [("it", 2, "")]),
        (REFUSED, [1], "an entity goes on that did not begin"),
    ),
    ("Argilla", "`fields`, `responses`"): (
        "x.json",
        [argilla(mood=[said("good")]), argilla("b", mood=[])],
        [{"text": "good lamp", "mood": "good", "status": None}, {"text": "b", "mood": None}],
    ),
    ("Argilla", "flat columns `QUESTION.responses`"): (
        "x.jsonl",
        lines(
            {
                "id": "1",
                "text": "a",
                "mood.responses": ["x"],
                "mood.responses.users": ["u"],
                "mood.responses.status": ["submitted"],
                "mood.suggestion": "y",
                "mood.suggestion.score": 0.5,
            }
        ),
        [{"id": "1", "text": "a", "mood": "x", "mood.suggestion": None, "mood.suggestion.score": None}],
    ),
    ("Argilla", "responses as versions before 2.0 wrote them"): (
        "x.json",
        [
            {
                "fields": {"text": "a"},
                "responses": [{"user_id": "u", "status": "submitted", "values": {"mood": {"value": "x"}}}],
            }
        ],
        [{"text": "a", "mood": "x"}],
    ),
    ("Argilla", "records of the first versions, with `annotation` and `prediction`"): (
        "x.json",
        [
            {
                "text": "a",
                "inputs": {"text": "a"},
                "prediction": [["y", 0.9]],
                "annotation": "x",
                "status": "Validated",
            },
            {"text": "b", "inputs": {"text": "b"}, "prediction": [["y", 0.9]], "annotation": None, "status": "Default"},
            {"text": "c", "inputs": None, "prediction": None, "annotation": "x", "status": "Discarded"},
        ],
        [{"text": "a", "annotation": "x", "prediction": None}, {"annotation": None}, {"text": "c", "annotation": None}],
    ),
    ("Argilla", "a draft or discarded response"): (
        "x.json",
        [argilla(mood=[said("x", "draft"), said("y", "discarded"), said("z")]), argilla(mood=[said("x", "draft")])],
        [{"mood": "z"}, {"mood": None}, "records without a submitted response, left out"],
    ),
    ("Argilla", "a suggestion"): ("x.json", [argilla(mood=[]), argilla(mood=[said("good")])], [{"mood": None}, {}]),
    ("Argilla", "several annotators"): (
        "x.json",
        [argilla(mood=[said("x"), said("y"), said("y")]), argilla(mood=[said("x"), said("y")])],
        [{"mood": "y"}, {"mood": "x"}, "answers of several annotators who differ, of which the commonest is read"],
    ),
    ("Argilla", "spans"): (
        "x.json",
        [argilla("👍 to Oslo please", ner=[said(spans((6, 10, "LOC")))])],
        [{"ner": spans((5, 9, "LOC"))}],
    ),
    ("SQuAD", "articles, paragraphs, questions"): (
        "x.json",
        {
            "version": "1.1",
            "data": [
                {
                    "title": "T",
                    "paragraphs": [
                        TREE
                        | {
                            "qas": [
                                {"id": "1", "question": "Who came?", "answers": [{"text": "Ben", "answer_start": 0}]},
                                {"id": "2", "question": "Who went?", "answers": [{"text": "Ann", "answer_start": 10}]},
                            ]
                        }
                    ],
                }
            ],
        },
        [
            {"question": "Who came?", "context": TREE["context"], "answers": [{"text": "Ben", "start": 0}]},
            {"question": "Who went?", "title": "T", "answers": [{"text": "Ann", "start": 10}]},
        ],
    ),
    ("SQuAD", "`is_impossible`"): (
        "x.json",
        {
            "data": [
                {
                    "paragraphs": [
                        TREE
                        | {
                            "qas": [
                                {
                                    "question": "Who paid?",
                                    "is_impossible": True,
                                    "answers": [],
                                    "plausible_answers": [{"text": "Ben", "answer_start": 0}],
                                }
                            ]
                        }
                    ]
                }
            ]
        },
        [{"question": "Who paid?", "answers": []}, "questions without an answer in their context"],
    ),
    ("brat", "a folder of `.txt` and `.ann`"): (
        "x",
        {
            "a.txt": "👍 in Oslo\r\nwith Ann",
            "a.ann": "T1\tLOC 5 9\tOslo\nT2\tPER 16 19\tAnn\n",
            "b.txt": "b",
            "b.ann": "",
        },
        [
            {"text": "👍 in Oslo\r\nwith Ann", "spans": spans((5, 9, "LOC"), (16, 19, "PER")), "file": "a.txt"},
            {"text": "b", "spans": []},
        ],
    ),
    ("brat", "a text without a `.ann` file"): (
        "x",
        {"a.txt": "a", "b.txt": "Ann", "b.ann": "T1\tPER 0 3\tAnn\n"},
        [{"text": "a", "spans": None}, {"spans": spans((0, 3, "PER"))}],
    ),
    ("brat", "a span in several pieces, or whose text stands elsewhere"): (
        "x",
        {
            "a.txt": "left and right lung",
            "a.ann": "T1\tPART 0 4;15 19\tleft lung\n",
            "b.txt": "in Oslo",
            "b.ann": "T1\tLOC 2 6\tOslo\n",
        },
        (REFUSED, [1, 2], "ann line 1"),
    ),
    ("brat", "relations, events, attributes"): (
        "x",
        {"a.txt": "Ann", "a.ann": "T1\tPER 0 3\tAnn\nR1\tOf Arg1:T1 Arg2:T1\nA1\tNegation T1\n"},
        [{"spans": spans((0, 3, "PER"))}, "annotations that are no spans of text, left out"],
    ),
    ("brat", "folders in the folder, notes without a text"): (
        "x",
        {"a.txt": "Ann", "a.ann": "T1\tPER 0 3\tAnn\n", "b.ann": "", "more/c.txt": "Ben", "more/c.ann": ""},
        [
            {"spans": spans((0, 3, "PER"))},
            "folders inside the folder, left out",
            "files of annotations without a text, left out",
        ],
    ),
    ("folders", "a folder for each class, a file for each text"): (
        "x",
        {"neg/1.txt": "bad\n", "pos/1.txt": "good", "pos/2.txt": "fine"},
        [
            {"text": "bad\n", "label": "neg", "file": "neg/1.txt"},
            {"text": "good", "label": "pos"},
            {"text": "fine", "label": "pos"},
        ],
    ),
    ("folders", "a folder `unsup` or `unlabelled`"): (
        "x",
        {"neg/1.txt": "bad", "pos/1.txt": "good", "unsup/1.txt": "who knows"},
        [{"label": "neg"}, {"label": "pos"}, {"text": "who knows", "label": None}],
    ),
    ("fastText", "`__label__a __label__b text`"): (
        "x.txt",
        "__label__a __label__b the text\nlate __label__c text\n",
        [{"text": "the text", "label": ["a", "b"]}, {"text": "late text", "label": ["c"]}],
    ),
    ("fastText", "a line without a label"): (
        "x.txt",
        "__label__a one\ntwo\n",
        [{"text": "one", "label": ["a"]}, {"text": "two", "label": None}, "lines without a label, left out"],
    ),
    ("CoNLL", "a word and its tag a line"): (
        "x.conll",
        "-DOCSTART- -X- O\n\nAnna NNP B-per\nsleeps VB O\n\n\n# NN O\n",
        [{"tokens": ["Anna", "sleeps"], "tags": ["B-per", "O"]}, {"tokens": ["#"], "tags": ["O"]}],
    ),
    ("CoNLL", "comments before a sentence"): (
        "x.iob",
        "# newdoc\n# id ab12\tdomain=en\nAnna _ _ B-per\nsleeps _ _ O\n\n# sent_id = 2\n# _ _ O\n#two _ _ O\n# _ _ O\n",
        [{"tokens": ["Anna", "sleeps"], "tags": ["B-per", "O"]}, {"tokens": ["#", "#two", "#"], "tags": ["O"] * 3}],
    ),
    ("CoNLL", "BILOU or BIOES tags"): (
        "x.bio",
        "a S-x\nb B-y\nc I-y\nd E-y\ne O\n",
        [
            {"tags": ["B-x", "B-y", "I-y", "I-y", "O"]},
            "sentences whose tags of one-word spans and of last words are read as B- and I-",
        ],
    ),
    ("CoNLL", "CoNLL-U"): (
        "x.conllu",
        "# text = du geht\n1-2\tzum\t_\t_\n1\tdu\tdu\tPRON\tX\n2\tgeht\tgehen\tVERB\tX\n",
        [{"tokens": ["du", "geht"], "tags": ["PRON", "VERB"]}],
    ),
    ("JSON", "pandas' orients records, split, table, columns, index"): (
        "x.json",
        {"columns": ["text", "label"], "index": [0, 1], "data": [["a", "x"], ["b", "y"]]},
        ROWS,
    ),
    ("JSON", "an object of lists, one a column"): ("x.json", {"text": ["a", "b"], "label": ["x", "y"]}, ROWS),
    ("JSON", '`{"data": [...]}` and the like'): ("x.json", {"version": "2", "data": ROWS, "by": {"name": "n"}}, ROWS),
    ("JSON", "rows without names of columns"): ("x.json", [["a", "x"], ["b", "y"]], (REFUSED, [1, 2], "to_json")),
    ("JSON", "several splits in one file"): (
        "x.json",
        {"train": ROWS, "test": ROWS},
        (REFUSED, [], "train (2), test (2)", "polyhead init train.json test.json"),
    ),
    ("JSON", "an object of objects that may be read in two ways"): (
        "x.json",
        {"one": {"p": 1, "q": 2}, "two": {"p": 3, "q": 4}},
        (REFUSED, [], "orient='records'"),
    ),
    ("CSV", "a cell `\\N`"): (
        "x.csv",
        "text,label\na,x\nb,\\N\n\\N,\\N\n",
        [{"text": "a", "label": "x"}, {"text": "b", "label": None}, {"text": None, "label": None}],
    ),
    ("CSV", "quotes, line ends or backslashes after a backslash, as MySQL and Spark write them"): (
        "x.csv",
        'text,label\n"say \\"no\\", now",x\n"fine",y\n"one\\\ntwo",x\n"a \\\\ b",x\n"ok",\\N\n',
        (REFUSED, [1, 3, 4], "a backslash escapes", "doubled"),
    ),
    ("TSV", "a line end, a tab or a backslash that is escaped, where a cell is `\\N`"): (
        "x.tsv",
        "text\tlabel\none\\\ntwo\tx\nC:\\dir\ty\na\\\tb\tx\na\\nb\tx\n\\N\t\\N\n",
        (REFUSED, [1, 3, 4], "a backslash escapes", "JSON Lines"),
    ),
    ("CSV", "any other backslash"): (
        "x.csv",
        'text,label\n"C:\\dir\\",x\n"say ""no""",y\n',
        [{"text": "C:\\dir\\", "label": "x"}, {"text": 'say "no"', "label": "y"}],
    ),
}


def written(folder, name, content):
    path = folder / name
    if isinstance(content, dict) and "." not in name:
        for inner, text in content.items():
            (path / inner).parent.mkdir(parents=True, exist_ok=True)
            (path / inner).write_bytes(text.encode())
    else:
        raw = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
        path.write_bytes(json.dumps(content).encode() if raw is None else raw)
    return str(path)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule[0]}: {rule[1]}")
def test_what_the_export_says_is_what_is_read(tmp_path, rule):
    name, content, wanted = RULES[rule]
    path = written(tmp_path, name, content)
    rows = Rows(path, ())
    if isinstance(wanted, tuple):
        _, numbers, *words = wanted
        try:
            wrong = [each for each in rows.each() if isinstance(each, BadValue)]
        except DataError as error:
            wrong = [error]
        else:
            assert [each.row for each in wrong] == numbers
            assert all(each.source == path for each in wrong)
        assert wrong and all(name in str(each) for each in wrong)
        assert all(word in " ".join(map(str, wrong)) for word in words), wrong
        return
    notes = {each for each in wanted if isinstance(each, str)}
    wanted = [each for each in wanted if isinstance(each, dict)]
    read = list(rows.each())
    assert [row.number for row in read] == list(range(1, len(wanted) + 1))
    for row, values in zip(read, wanted, strict=True):
        assert {column: row.values.get(column) for column in values} == values
    assert not notes or notes <= {what for what, count in rows.form.counts.items() if count}


FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["neg", "pos"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["O", "B-x"], "_type": "ClassLabel"}, "_type": "Sequence"},
    "old": [{"names": ["O", "B-x"], "_type": "ClassLabel"}],
    "large": {"feature": {"names": {"0": "O", "1": "B-x"}, "_type": "ClassLabel"}, "_type": "LargeList"},
    "spans": [{"start": {"dtype": "int64", "_type": "Value"}, "label": {"names": ["P", "Q"], "_type": "ClassLabel"}}],
    "one": {"kind": {"names": ["k", "l"], "_type": "ClassLabel"}},
}
NAMELESS = {
    "text": ["a", "b", "c"],
    "label": [1, 0, -1],
    "tags": [[0, 1], [1], [-1, -1]],
    "old": [[0, 1], [], None],
    "large": [[1], [0], [1]],
    "spans": [[{"start": 0, "label": 1}], [], None],
    "one": [{"kind": 0}, {"kind": 1}, {"kind": None}],
}
NAMED = {
    "text": ["a", "b", "c"],
    "label": ["pos", "neg", None],
    "tags": [["O", "B-x"], ["B-x"], None],
    "old": [["O", "B-x"], [], None],
    "large": [["B-x"], ["O"], ["B-x"]],
    "spans": [[{"start": 0, "label": "Q"}], [], None],
    "one": [{"kind": "k"}, {"kind": "l"}, {"kind": None}],
}


def test_classes_of_a_hub_file_have_their_names_and_minus_one_is_none(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table(NAMELESS)
    parquet.write_table(table, tmp_path / "plain.parquet")
    said = json.dumps({"info": {"features": FEATURES}})
    parquet.write_table(table.replace_schema_metadata({"huggingface": said}), tmp_path / "hub.parquet")
    for name, wanted in (("plain", NAMELESS), ("hub", NAMED)):
        rows = [row.values for row in Rows(str(tmp_path / f"{name}.parquet"), tuple(wanted))]
        assert {column: [row[column] for row in rows] for column in wanted} == wanted
    for damaged in ("{", "3", '{"info": 3}', '{"info": {"features": [1]}}', "[" * 9999):
        parquet.write_table(table.replace_schema_metadata({"huggingface": damaged}), tmp_path / "x.parquet")
        assert [row.values["label"] for row in Rows(str(tmp_path / "x.parquet"), ("label",))] == [1, 0, -1]


def test_argillas_first_versions_give_the_annotation_alone(tmp_path):
    """Of a record's columns about who annotated it none is a label; entities are `[label, start, end]`."""
    agents = {
        "prediction_agent": "m",
        "annotation_agent": "u",
        "multi_label": False,
        "explanation": None,
        "metrics": {},
    }
    entities = [{"text": "\U0001f44d to Oslo", "annotation": [["LOC", 5, 9]]}, {"text": "nowhere", "annotation": []}]
    rows = [{**each, "prediction": [["LOC", 0, 1, 0.4]], "status": "Validated", **agents} for each in entities]
    file = tmp_path / "x.jsonl"
    file.write_text(lines(*rows))
    read = [row.values for row in Rows(str(file), ())]
    assert read == [
        {"text": entities[0]["text"], "annotation": spans((5, 9, "LOC"))},
        {"text": "nowhere", "annotation": []},
    ]


def test_suggestions_in_argillas_older_hub_files_are_no_labels(tmp_path):
    """Responses are lists of objects, or objects of lists, as versions of the `datasets` library write them."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    listed = [[said("x")], [said("y", "draft")], [said("y"), said("y"), said("x")]]
    keys = ("value", "user_id", "status")
    turned = [{key: [each[key] for each in answers] for key in keys} for answers in listed]
    for number, answers in enumerate((listed, turned)):
        columns = {"text": ["a", "b", "c"], "mood": answers, "mood-suggestion": ["z"] * 3}
        path = str(tmp_path / f"{number}.parquet")
        parquet.write_table(arrow.table(columns), path)
        read = [dict(row.values) for row in Rows(path, ("text", "mood"))]
        assert read == [{"text": text, "mood": mood} for text, mood in zip("abc", ("x", None, "y"), strict=True)]


def test_a_span_outside_its_text_is_no_matter_of_emoji(tmp_path):
    for name, record in [
        ("doccano", {"text": "Anna", "label": [[2, 99, "per"]]}),
        ("doccano", {"text": "Anna", "label": [[2, 2, "per"]]}),
        ("Argilla", argilla("Anna", ner=[said(spans((2, 99, "per")))])),
        ("doccano", {"text": "\U0001f44d Anna", "label": [[2, 99, "per"]]}),
    ]:
        file = tmp_path / "x.jsonl"
        file.write_text(lines(record))
        with pytest.raises(BadValue, match=r"x.jsonl row 1: a span is empty, or ends outside its text") as caught:
            list(Rows(str(file), ()))
        assert "emoji" not in str(caught.value), name


def test_argillas_columns_in_a_hub_file_are_read_together(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "text": ["a", "b", "c"],
        "mood.responses": [["x", "y", "y"], ["x"], None],
        "mood.responses.users": [["u", "v", "w"], ["u"], None],
        "mood.responses.status": [["submitted"] * 3, ["draft"], None],
        "mood.suggestion": ["z"] * 3,
    }
    parquet.write_table(arrow.table(columns), tmp_path / "x.parquet")
    rows = Rows(str(tmp_path / "x.parquet"), ("text", "mood"))
    assert [dict(row.values) for row in rows] == [
        {"text": text, "mood": mood} for text, mood in zip("abc", ("y", None, None), strict=True)
    ]
    assert list(rows.columns) == ["text", "mood"]


class ClassLabel:
    def __init__(self, names):
        self.names = names


class Listed:
    def __init__(self, feature):
        self.feature = feature


def test_classes_of_a_set_have_their_names_by_its_features():
    """As objects of the `datasets` library describe them; a list of dictionaries comes as a dictionary of lists."""
    tag = ClassLabel(["O", "B-x"])
    for value, feature, wanted in [
        (1, tag, "B-x"),
        (-1, tag, None),
        ("B-x", tag, "B-x"),
        ([0, 1], Listed(tag), ["O", "B-x"]),
        ([0, 1], [tag], ["O", "B-x"]),
        (
            {"start": [0, 3], "label": [1, 0]},
            Listed({"start": object(), "label": tag}),
            {"start": [0, 3], "label": ["B-x", "O"]},
        ),
        ([{"label": 1}], Listed({"label": tag}), [{"label": "B-x"}]),
        ([[0], [1]], Listed(Listed(tag)), [["O"], ["B-x"]]),
        (3, object(), 3),
        (None, tag, None),
    ]:
        assert with_names(value, feature) == wanted


def test_every_rule_of_the_page_has_its_case():
    table = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    named = {(cells[0].removeprefix("| "), cells[1]) for cells in table}
    assert named == set(RULES) | {("hub", "class names of a Parquet file"), ("hub", "-1")}


@pytest.mark.parametrize("orient", ["records", "split", "table", "columns", "index"])
@pytest.mark.parametrize("packed", [False, True])
def test_frames_are_read_in_every_orient_that_pandas_writes(tmp_path, orient, packed):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / ("x.json.gz" if packed else "x.json")
    pandas.DataFrame(ROWS).to_json(path, orient=orient)
    assert [{name: row.values[name] for name in ("text", "label")} for row in Rows(str(path), ())] == ROWS
    pandas.DataFrame(ROWS).to_json(tmp_path / "y.json", orient="values")
    with pytest.raises(BadValue, match="to_json"):
        list(Rows(str(tmp_path / "y.json"), ()))


def test_rows_that_look_a_little_like_exports_stay_rows(tmp_path):
    """A column called answer, spans as objects, one row of lists, a list of objects beside a text."""
    for name, rows in {
        "a.jsonl": [{"question": "q", "answer": "accept"}, {"question": "p", "answer": "reject"}],
        "b.jsonl": [{"text": "Anna", "spans": spans((0, 4, "per"))}],
        "c.jsonl": [{"tokens": ["a", "b"], "tags": ["O", "O"]}],
        "d.json": [{"text": "Anna", "spans": spans((0, 4, "per"))}],
        "e.jsonl": [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}],
        "f.jsonl": [{"text": "a", "data": {"x": 1}}, {"text": "b", "responses": "none"}],
    }.items():
        (tmp_path / name).write_text(lines(*rows))
        read = Rows(str(tmp_path / name), ())
        assert [dict(row.values) for row in read] == rows, name
        assert read.form is None


def test_exports_may_be_packed_and_may_be_lines_or_an_array(tmp_path):
    records = [studio("in Oslo", region(3, 7, "Oslo", "LOC"))] * 3
    for name, content in {
        "a.json": json.dumps(records, indent=1),
        "b.json": lines(*records),
        "c.jsonl": lines(*records),
        "d.jsonl": json.dumps(records),
    }.items():
        (tmp_path / name).write_text(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode("utf-8-sig")))
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            assert [row.values["ner"] for row in Rows(str(path), ())] == [spans((3, 7, "LOC"))] * 3


DAMAGED = {
    "x.json": ["[", "[1,", '[{"a": 1}] x', "[" * 100_000, '{"data": [' + "[" * 100_000],
    "x.jsonl": ['{"text": "a", "cats": {"x": 1}}\n{"text": "b", "cats": 3}\n'],
    "y.jsonl": ['{"text": "a", "answer": "accept", "accept": ["x"]}\n{"text": "b", "answer": "accept", "accept": 3}\n'],
    "x.spacy": [b"", b"no zlib", zlib.compress(b"\xc1"), zlib.compress(b"\x93\1\2\3"), bin_of([("a", 2, "")])[:-9]],
    "w.json": [json.dumps([studio("a"), {"data": {"text": "b"}, "annotations": [{"result": [{"value": 3}]}]}])],
    "v.json": [json.dumps({"data": [{"paragraphs": [TREE]}, {"paragraphs": [bad]}]}) for bad in (3, {"qas": 3})],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_exports_are_refused_by_name_or_row_and_never_by_an_accident(tmp_path, name):
    for content in DAMAGED[name]:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            read = list(Rows(str(path), ()).each())
        except DataError as error:
            assert name in str(error)
        else:
            wrong = [each for each in read if isinstance(each, BadValue)]
            assert all(name in str(each) and each.row for each in wrong)
            assert wrong or name == "w.json"


def test_tags_of_other_schemes_stay_where_one_is_no_part_of_the_scheme(tmp_path):
    (tmp_path / "b.bio").write_text("a S\nb B-y\n")
    assert next(iter(Rows(str(tmp_path / "b.bio"), ()))).values["tags"] == ["S", "B-y"]


def test_blanks_and_line_ends_of_unicode_are_part_of_words_and_spans(tmp_path):
    """A no-break space cut a word, so that its tag was that of the first half."""
    (tmp_path / "a.conll").write_text("10\u00a0000 _ B-x\n e\u3000f  _ O \n\u00a0 _ O\n\n")
    (row,) = Rows(str(tmp_path / "a.conll"), ())
    assert row.values == {"tokens": ["10\u00a0000", "e\u3000f", "\u00a0"], "tags": ["B-x", "O", "O"]}
    folder = tmp_path / "brat"
    folder.mkdir()
    (folder / "a.txt").write_text("in New\u2028York\u0085s")
    (folder / "a.ann").write_bytes("T1\tLOC 3 11\tNew\u2028York\r\nT2\tX 3 13\tNew\u2028York\u0085s\n".encode())
    (row,) = Rows(str(folder), ())
    assert row.values["spans"] == spans((3, 11, "LOC"), (3, 13, "X"))
    (folder / "a.ann").write_bytes("T1\tLOC 3 11\tNew\u2028York\rT2\tX 3 13\tNew\u2028York\u0085s\r".encode())
    (row,) = Rows(str(folder), ())
    assert row.values["spans"] == spans((3, 11, "LOC"), (3, 13, "X"))


def test_blanks_of_unicode_after_a_tag_and_between_columns_are_no_part_of_it(tmp_path):
    """A tag with a no-break space after it was another tag."""
    for name, lines in (("a.conll", "x _ B-y\u00a0\nz _ O \u00a0\n"), ("b.conll", "x\tB-y\u00a0\nz\tO\u2003\n")):
        (tmp_path / name).write_text(lines)
        (row,) = Rows(str(tmp_path / name), ())
        assert row.values == {"tokens": ["x", "z"], "tags": ["B-y", "O"]}
    (tmp_path / "c.conll").write_text("x\u3000B-y\n z\u00a0z\u3000\u3000O \n")
    (row,) = Rows(str(tmp_path / "c.conll"), ())
    assert row.values == {"tokens": ["x", "z\u00a0z"], "tags": ["B-y", "O"]}


@pytest.mark.parametrize(("content", "said"), [("", "no sentence"), ("a B-x\nb\n", "line 2"), ("\xff", "cannot read")])
def test_conll_that_cannot_be_read_is_named(tmp_path, content, said):
    (tmp_path / "a.conll").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=said):
        list(Rows(str(tmp_path / "a.conll"), ()))


def test_a_backslash_that_escapes_nothing_stays_in_a_table_with_nulls(tmp_path):
    """As ClickHouse writes tables: quotes doubled, NULL as a backslash and N."""
    (tmp_path / "x.csv").write_text('text,label\n"C:\\new ""dir""",x\nb\\c,\\N\n\\Name,\\N\n')
    read = [tuple(row.values.values()) for row in Rows(str(tmp_path / "x.csv"), ())]
    assert read == [('C:\\new "dir"', "x"), ("b\\c", None), ("\\Name", None)]


def test_the_line_that_writes_a_file_of_each_split_can_be_run(tmp_path):
    (tmp_path / "both.json").write_text(json.dumps({"train": ROWS, "test": ROWS[:1]}))
    with pytest.raises(DataError) as caught:
        list(Rows(str(tmp_path / "both.json"), ()))
    _, code, rest = caught.value.do.split('"', 2)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert rest.endswith("polyhead init train.json test.json")
    assert [dict(row.values) for row in Rows(str(tmp_path / "train.json"), ())] == ROWS
    assert [dict(row.values) for row in Rows(str(tmp_path / "test.json"), ())] == ROWS[:1]


def test_spacys_hashes_are_those_that_its_documentation_prints():
    assert hash_of("coffee") == 3197928453018144401
    assert hash_of("I") == 4690420944186131903
    assert hash_of("love") == 3702023516439754181


JUNK = (None, 3, -1, 1.5, "x", "", [], {}, [1], [[]], {"a": 1}, True, [None], {"start": 1}, 10**18)


def damaged(value, rng):
    """The value with some of its parts replaced by others."""
    if rng.random() < 0.08:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {name: damaged(part, rng) for name, part in value.items()}
    return [damaged(part, rng) for part in value] if isinstance(value, list) else value


def test_exports_in_which_anything_stands_elsewhere_are_rows_or_are_refused(tmp_path):
    rng, read = random.Random(11), 0
    for name, content, _ in RULES.values():
        if not name.endswith((".json", ".jsonl")):
            continue
        for _ in range(5):
            made = [json.loads(line) for line in content.splitlines()] if isinstance(content, str) else content
            made = damaged(made, rng)
            (tmp_path / name).write_text(
                lines(*made) if isinstance(content, str) and isinstance(made, list) else json.dumps(made)
            )
            try:
                read += sum(1 for _ in Rows(str(tmp_path / name), ()).each())
            except DataError as error:
                assert name in str(error)
    assert read > 200


def test_a_format_is_one_class_that_others_can_register(tmp_path):
    class Shouts(RecordFormat):
        name = "shouts"

        @classmethod
        def knows(cls, head):
            return all(isinstance(record, dict) and "SHOUT" in record for record in head)

        def rows(self, record):
            self.counts["shouts"] += 1
            yield {"text": record["SHOUT"].lower(), "label": record.get("MOOD")}

    (tmp_path / "x.jsonl").write_text(lines({"SHOUT": "OH NO", "MOOD": "bad"}, {"SHOUT": 3}))
    with ANNOTATIONS.temporary():
        register_annotations(Shouts)
        rows = Rows(str(tmp_path / "x.jsonl"), ())
        first, second = rows.each()
        assert first.values == {"text": "oh no", "label": "bad"} and rows.form.name == "shouts"
        assert "not as shouts writes it" in str(second) and second.row == 2
    assert "SHOUT" in next(iter(Rows(str(tmp_path / "x.jsonl"), ()))).values
