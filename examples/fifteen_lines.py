"""Everything a model does, in fifteen lines: python examples/fifteen_lines.py [TRUNK]."""

import sys

from polyhead import Model

texts = [f"the {thing} is {word}" for thing in ("lamp", "kettle", "phone", "box") for word in ("good", "fine", "bad")]
moods = ["bad" if "bad" in text else "good" for text in texts]
alike = [str(a.split()[1] == b.split()[1]) for a, b in zip(texts, texts[1:], strict=False)]
questions = [("which thing is it?", text) for text in texts]
spans = [[{"text": text.split()[1], "start": 4}] for text in texts]

model = Model(*sys.argv[1:])  # by default minilm
model.fit("mood", texts, moods)  # its kind is guessed, and said
model.fit("same_thing", list(zip(texts, texts[1:], strict=False)), alike)  # pairs
model.fit("thing", questions, spans, kind="span")  # the answer's place in a text
print(model.predict("the phone is bad"))  # of the tasks that fit the input
print(model.predict(questions[:1], tasks=["thing"]))
print(model.predict_proba(texts[:2], "mood"))
print(model.evaluate("mood", texts, moods))
print(model.update("mood", texts * 2, moods * 2))  # goes live if it is better
model.fit("mood", texts * 2, moods * 2)  # goes live in any case
print(model.rollback("mood"))
model.save("lamps")
again = Model.load("lamps")
# again.push("team/lamps"); Model.pull("team/lamps", "elsewhere")   with a network
print(again.results(["the box is fine"])[0].to_dict())
