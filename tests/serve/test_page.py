"""The page in a real Chromium: one browser and one server for all tests."""

import json
import re
import shlex
from urllib.parse import urlsplit

import pytest

from polyhead.engine.inputs import Passage, input_types_of
from polyhead.evaluate.explain import explained
from polyhead.text.question import Question
from support import browser as browsers
from support.page_scripts import BEYOND, CONTRAST, CONTROLS, FOCUS, SMALL, STRUCTURE
from support.page_server import CARD, EARLY, HOSTILE, LONGEST, MANY, held_stages, page_bundle, page_server
from support.tiny_project import fail_heads

pytestmark = pytest.mark.skipif(browsers.missing() is not None, reason=browsers.missing() or "")

TEXT = "the 😀 lamp is late on monday, please refund"
ASKED = """
    const answers = document.getElementById("answers");
    return answers.getAttribute("aria-busy") === "false" && (!document.getElementById("results").hidden
      || !document.getElementById("error").hidden)
"""
READY = """
    return document.querySelectorAll("#tasks button").length > 0
      && document.getElementById("health").dataset.state === "up"
"""
CURL = "return document.getElementById('curl').textContent"
MARKS = "return [...document.querySelectorAll('#reading mark')].map(e => [e.firstChild.data, e.innerText, e.title])"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return page_bundle(tmp_path_factory.mktemp("page") / "bundle")


@pytest.fixture(scope="module")
def server(root):
    with page_server(root) as running:
        yield running


@pytest.fixture(scope="module")
def chromium():
    with browsers.Browser() as running:
        yield running


@pytest.fixture
def page(chromium, server):
    """The page as it is opened first; whatever a test did, it asked no other server and broke no rule of its policy."""
    with opened(chromium, server.url) as page:
        yield page


class opened:
    """The page of this address, ready; checked at the end."""

    def __init__(self, chromium, url, *, ready=READY):
        self.chromium, self.url, self.ready = chromium, url, ready

    def __enter__(self):
        self.chromium.emulate(width=1280, scheme="light", motion="reduce")
        self.chromium.go("about:blank")  # a page of another server no longer asks
        self.chromium.requested()
        self.chromium.go(self.url)
        self.chromium.run("localStorage.clear(); sessionStorage.clear(); delete document.documentElement.dataset.theme")
        self.chromium.wait(self.ready)
        return self.chromium

    def __exit__(self, kind, *_):
        asked, said = self.chromium.requested(), [entry["message"] for entry in self.chromium.log("browser")]
        if kind is None:
            home = urlsplit(self.url)
            assert asked and {urlsplit(url)[:2] for url in asked} == {home[:2]}
            assert not [words for words in said if "Content Security Policy" in words or "Trusted" in words]
            assert not [words for words in said if "Uncaught" in words]


def ask(page, text, *, by=("Control", "Enter")):
    page.run("document.getElementById('text').value = ''")
    page.type("#text", text)
    page.press(*by)
    page.wait(ASKED)


def cards(page):
    return page.run(
        "return Object.fromEntries([...document.querySelectorAll('.answer')]"
        ".map(e => [e.id.slice(7), [e.dataset.state, e.querySelector('.body').innerText]]))"
    )


def readers(server, kind):
    return {name for name, task in server.session.tasks.items() if kind in input_types_of(task)}


def test_a_typed_text_is_answered_by_every_task_that_reads_it(page, server):
    ask(page, TEXT)
    (result,) = server.session.predict([TEXT])
    shown = cards(page)
    assert shown.keys() == readers(server, "text") == result.answers.keys()
    assert {state for state, _ in shown.values()} == {"done"}
    assert shown["mood"][1].startswith(result.answers["mood"]["label"])
    for label, share in result.answers["mood"]["scores"].items():
        value = re.search(rf"{label}[^%]*?([\d.]+) %", shown["mood"][1].partition("\n")[2])[1]
        assert float(value) == pytest.approx(100 * share, abs=0.51)
    assert float(shown["urgency"][1].split()[0]) == pytest.approx(result.answers["urgency"]["value"], rel=0.006)
    receipt = page.text("#receipt")
    assert receipt.startswith(f"{len(shown)} answers in ") and "one pass" in receipt and "nothing cut" in receipt
    assert f"{result.receipt.layers} layers" in receipt and f"{result.receipt.tokens} tokens" in receipt
    assert set(page.texts(".answer .version")) == {"v0001"}
    for name, why in result.skipped.items():
        assert f"{name} {why}" in page.text("#unfit")


def test_answers_appear_as_each_task_is_done(page):
    with held_stages() as going:
        page.type("#text", TEXT)
        page.press("Control", "Enter")
        page.wait("return document.getElementById('answer-early')?.dataset.state === 'done'")
        waiting = cards(page)
        assert [name for name, (state, _) in waiting.items() if state == "done"] == [EARLY.name]
        assert waiting["mood"] == ["waiting", "waiting"]
        assert page.run("return document.getElementById('answers').getAttribute('aria-busy')") == "true"
        going.set()
        page.wait(ASKED)
    assert {state for state, _ in cards(page).values()} == {"done"}


def test_a_new_question_takes_the_place_of_the_one_under_way(page):
    with held_stages() as going:
        page.type("#text", "anna is sad")
        page.press("Control", "Enter")
        page.wait("return document.getElementById('answer-early')?.dataset.state === 'done'")
        page.type("#text", " and late")
        page.press("Control", "Enter")
        going.set()
        page.wait(ASKED)
    assert {state for state, _ in cards(page).values()} == {"done"}
    assert "anna is sad and late" in page.run(CURL)


def test_tags_are_marked_where_they_stand_even_behind_an_emoji(page, server):
    ask(page, TEXT)
    spans = server.session.predict([TEXT])[0].answers["names"]["spans"]
    assert any(span["start"] > TEXT.index("😀") for span in spans)
    marks = page.run(MARKS)
    assert [mark[0] for mark in marks] == [span["text"] for span in spans]
    for (_, seen, title), span in zip(marks, spans, strict=True):
        assert span["label"] in seen and title.startswith(f"names: {span['label']}")
    bare = page.run("""
        const copy = document.getElementById("reading").cloneNode(true);
        copy.querySelectorAll(".tag").forEach(tag => tag.remove());
        return copy.textContent
    """)
    assert bare == TEXT


def test_marks_that_overlap_are_cut_where_one_begins_or_ends(page):
    """By hand: 0-3 and 1-5 of "a😀bcdef" share 1-3; 6-9 goes beyond its end."""
    nodes = page.run("""
        const places = [[1, 5, "late"], [0, 3, "early"], [6, 9, "end"]];
        const marks = places.map(([start, end, label]) => ({start, end, label, task: "t", tone: 1}));
        const tags = node => [...node.querySelectorAll(".tag")].map(tag => tag.textContent);
        return import("/page/marks.js").then(({marked}) => marked("a😀bcdef", marks)
          .map(node => typeof node === "string" ? node : [node.firstChild.data, node.className, tags(node)]))
    """)
    assert nodes == [
        ["a", "tone-1", []],
        ["😀b", "tone-1 several", ["early"]],
        ["cd", "tone-1", ["late"]],
        "e",
        ["f", "tone-1", ["end"]],
    ]


def test_a_pair_a_passage_and_options_are_asked_too(page, server):
    page.click("#forms label:nth-of-type(2)")
    page.type("#text", "is anna happy?")
    page.type("#second", "anna is happy today.")
    page.click("#ask")
    page.wait(ASKED)
    (result,) = server.session.predict([("is anna happy?", "anna is happy today.")])
    assert cards(page).keys() == readers(server, "pair") == result.answers.keys()
    page.click("#forms label:nth-of-type(3)")
    assert page.run("return document.getElementById('results').hidden"), "answers to a pair are none to a passage"
    page.click("#ask")
    page.wait(ASKED)
    (result,) = server.session.predict([Passage(question="is anna happy?", context="anna is happy today.")])
    assert cards(page).keys() == readers(server, "passage")
    span = result.answers["where"]
    assert f"“{span['text']}”" in cards(page)["where"][1]
    assert span["text"] in "".join(mark[0] for mark in page.run(MARKS))
    page.click("#forms label:nth-of-type(4)")
    page.run("document.getElementById('second').value = ''")
    page.type("#options", "the lamp\n\nanna\nthe bill")
    page.click("#ask")
    page.wait(ASKED)
    (result,) = server.session.predict([Question(text="is anna happy?", options=("the lamp", "anna", "the bill"))])
    shown = page.run("return [...document.querySelectorAll('#answer-reply .bars .name')].map(e => e.textContent)")
    assert shown == [
        ("the lamp", "anna", "the bill")[index] + (" (answered)" if place == 0 else "")
        for place, index in enumerate(result.answers["reply"]["ranked"])
    ]


def test_an_example_is_asked_with_one_click(page):
    first = page.texts("#examples button")[0]
    page.click("#examples li:nth-child(1) button")
    page.wait(ASKED)
    assert page.run("return document.getElementById('text').value") == first
    assert page.run("return document.getElementById('empty').hidden")


def test_what_a_server_says_is_shown_as_text(page):
    ask(page, f"anna {HOSTILE} the lamp")
    shown = cards(page)["hostile"][1]
    assert HOSTILE in shown and f"</script>{HOSTILE}" in shown
    page.run("document.querySelector('[data-task=hostile]').click()")
    page.wait("return document.querySelector('#card-body .prose')")
    card = page.run("return document.getElementById('card-body').textContent")
    assert HOSTILE in card and "a link (javascript:alert(1))" in card
    made = "#answers img, #answers script, #reading img, #card img, #card script, #card a, #curl *, [onerror]"
    assert page.run("return document.querySelectorAll(arguments[0]).length", made) == 0
    assert page.run("return document.title") == "Polyhead"


def test_html_cannot_be_put_into_the_page_at_all(page):
    """The policy's last line of defence, should a later change forget to insert texts as texts."""
    tried = "document.getElementById('answers').innerHTML = '<b>x</b>'; return 'made'"
    assert page.run(f"try {{ {tried} }} catch (error) {{ return error.name }}") == "TypeError"
    page.log("browser")  # which tells of it


def test_many_labels_are_shown_best_first_and_the_rest_on_demand(page, server):
    ask(page, TEXT)
    scores = server.session.predict([TEXT])[0].answers[MANY.name]["scores"]
    shown = page.run("return [...document.querySelectorAll('#answer-many .bars .name')].map(e => e.firstChild.data)")
    assert shown == sorted(scores, key=scores.get, reverse=True)
    assert page.text("#answer-many summary") == "4 more"


def test_a_card_is_opened_read_and_closed_by_keys_and_the_focus_comes_back(page):
    page.run("document.querySelector('#tasks button').focus()")
    names = page.texts("#tasks .name")
    page.press("ArrowDown")
    page.press("End")
    page.press("ArrowDown")  # from the last to the first
    page.press("ArrowUp")
    assert page.run("return document.activeElement.querySelector('.name').textContent") == names[-1] == MANY.name
    page.press("Enter")
    page.wait("return document.querySelector('#card-body .prose')")
    assert page.text("#card-title") == MANY.name
    assert page.accessible("#card") == ("dialog", MANY.name)
    assert page.texts("#card .path strong") == ["Embed", "Layers", "Pool", "Head"]
    assert page.texts("#card .labels li") == list(MANY.labels)
    assert "0.75" in page.text("#card .bars") and "0.5" in page.text("#card .bars")
    assert page.texts("#card .prose th") == ["split", "f1", "test"] and page.texts("#card .prose li")[0] == "first"
    assert page.run("return document.querySelector('#card .prose strong').textContent") == "one" and "**one**" in CARD
    page.press("Escape")
    assert page.run("return document.activeElement.querySelector('.name').textContent") == MANY.name
    assert page.run("return document.querySelectorAll('#tasks button[tabindex=\"0\"]').length") == 1


def test_one_task_is_asked_alone_and_then_all_again(page):
    page.run("document.querySelectorAll('#tasks button')[0].click()")
    page.wait("return document.querySelector('#card-body .facts')")
    page.click("#card-body > button")
    assert "Only “mood” is asked." in page.text("#only")
    ask(page, TEXT)
    assert cards(page).keys() == {"mood"}
    page.click("#all")
    ask(page, TEXT)
    assert len(cards(page)) > 1


def test_the_page_at_a_tasks_own_port_is_of_that_task(chromium, root):
    """It spoke of all tasks, and its cards waited for tasks that were not asked."""
    with page_server(root, task="many") as server, opened(chromium, server.url) as page:
        assert page.text("#server") == "many over one encoder" and page.text("#ask") == "Ask one task"
        assert page.run("return document.querySelectorAll('#tasks button').length") == 1
        ask(page, TEXT)
        assert cards(page).keys() == {"many"}


def test_all_can_be_done_by_keys_alone_and_the_focus_is_always_seen(page):
    def places(presses):
        for _ in range(presses):
            page.press("Tab")
            name, style, width = page.run(FOCUS)
            assert style == "solid" and width >= 2, f"the focus is not seen at {name}"
            yield name

    assert list(places(5)) == ["Skip to the text", "API", "theme", "form", "text"]
    page.type("#text", TEXT)
    page.press("Enter")
    assert page.run("return document.getElementById('text').value") == f"{TEXT}\n", "Enter alone is a new line"
    page.press("Tab")
    page.press("Space")
    page.wait(ASKED)
    assert page.run(FOCUS)[0] == "ask"
    answered = page.texts(".answer h3")
    stops = list(places(2 * len(answered) + 3))
    seen = [name for name in stops if name != "Why?"]
    assert stops.count("Why?") == len(answered)
    assert seen[:-3] == answered and seen[-3:-1] == ["4 more", "The same with curl"] and seen[-1].startswith("mood")


def test_the_form_of_an_input_is_chosen_by_arrow_keys(page):
    page.run("document.querySelector('#forms input:checked').focus()")
    page.press("ArrowRight")
    assert page.text("#second-label") == "Second text" and page.text("#lead").startswith("4 tasks answer a pair")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert not page.run("return document.getElementById('options-field').hidden")


def test_an_empty_question_is_not_sent_and_the_field_gets_the_focus(page):
    page.click("#ask")
    assert "type something first" in page.text("#complaint")
    assert page.run("return document.activeElement === document.querySelector('[aria-invalid]')")
    assert page.run(FOCUS)[0] == "text"
    assert page.accessible("#complaint")[0] == "alert"
    page.type("#text", "a")
    assert page.text("#complaint") == ""


def test_a_refusal_says_what_was_given_what_is_allowed_and_what_to_do(page):
    page.run("document.getElementById('text').value = 'lamp '.repeat(100)")
    page.click("#ask")
    page.wait(ASKED)
    said = page.text("#error")
    assert said.startswith("A text of input 0 is too long\n") and said.count("500") == 1
    assert f"Allowed: {LONGEST}" in said and "Shorten it" in said and "Given: 500 characters" in said
    assert page.run("return document.getElementById('results').hidden")
    page.run("document.getElementById('text').value = 'lamp'")
    page.click("#error button")
    page.wait("return !document.getElementById('results').hidden")
    assert page.run("return document.getElementById('error').hidden")


def test_a_cut_text_is_told_in_the_receipt(page, server):
    text = "the lamp is late " * 20
    ask(page, text)
    cut = server.session.predict([text])[0].receipt.cut
    assert cut > 0 and f"{cut} tokens at the end not read" in page.text("#receipt")
    assert page.run("return document.getElementById('receipt').classList.contains('cut')")


def test_a_task_that_fails_says_so_and_the_others_answer(page, monkeypatch):
    fail_heads(monkeypatch, "topics")
    ask(page, TEXT)
    shown = cards(page)
    state, words = shown.pop("topics")
    assert state == "failed" and "This task failed" in words and "no such head" in words
    assert {state for state, _ in shown.values()} == {"done"}


def test_a_server_that_goes_away_is_told_and_found_again(chromium, root):
    with page_server(root) as server, opened(chromium, server.url) as page:
        with held_stages() as going:
            page.type("#text", TEXT)
            page.press("Control", "Enter")
            page.wait("return document.getElementById('answer-early')?.dataset.state === 'done'")
            server._server.force_exit = True
            server._server.should_exit = True
            page.wait("return !document.getElementById('error').hidden")
            going.set()
        assert "went away before it was done" in page.text("#error") and "polyhead serve" in page.text("#error")
        assert cards(page).keys() == {EARLY.name} and "1 answer came" in page.text("#receipt")
        server.stop()
        page.wait("return document.getElementById('health').dataset.state === 'down'")
        assert page.text("#health-text") == "no answer"
        page.click("#ask")
        page.wait(ASKED)
        assert "The server does not answer" in page.text("#error")
        server.start()
        page.wait(READY)
        page.click("#error button")
        page.wait("return document.getElementById('answer-mood')?.dataset.state === 'done'")
        assert page.run("return document.getElementById('error').hidden")


def test_a_key_is_asked_for_and_kept_in_memory_alone(chromium, root):
    wanted = "return document.getElementById('key').open"
    with page_server(root, key="k3y-right") as server, opened(chromium, server.url, ready=wanted) as page:
        assert page.accessible("#key") == ("dialog", "This server needs a key")
        assert page.accessible("#key-value")[1] == "API key"
        page.type("#key-value", "wrong")
        page.press("Enter")
        page.wait("return document.getElementById('key-why').textContent.includes('does not know')")
        page.type("#key-value", "k3y-right")
        page.press("Enter")
        page.wait("return document.querySelectorAll('#tasks button').length > 0")
        ask(page, TEXT)
        assert "mood" in cards(page) and "Bearer $KEY" in page.run(CURL)
        kept = page.run(
            "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )
        assert "k3y" not in kept
        assert "k3y" not in page.run("return document.documentElement.outerHTML")
        page.click("#forget")
        page.type("#text", " again")
        page.press("Control", "Enter")
        page.wait(wanted)
        page.press("Escape")
        page.wait(ASKED)
        assert "needs a key" in page.text("#error")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast_in_each_theme(page, scheme):
    page.emulate(width=1280, scheme=scheme, motion="reduce")
    backgrounds = {"light": 200, "dark": 60}
    shade = page.run("return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    assert shade > backgrounds["light"] if scheme == "light" else shade < backgrounds["dark"]
    checked = [page.run(CONTRAST)]
    with held_stages() as going:
        page.type("#text", TEXT)
        page.press("Control", "Enter")
        page.wait("return document.getElementById('answer-early')?.dataset.state === 'done'")
        checked.append(page.run(CONTRAST))
        going.set()
        page.wait(ASKED)
    page.run("for (const d of document.querySelectorAll('details')) d.open = true")
    page.run("""
        document.getElementById('receipt').classList.add('cut');
        document.getElementById('health').dataset.state = 'down';
        document.getElementById('forget').hidden = false;
        for (let i = 1; i <= 6; i++) document.getElementById('reading').insertAdjacentElement('beforeend',
          Object.assign(document.createElement('mark'), {className: `tone-${i}`, textContent: `tone ${i}`}));
        return import('/page/answers.js').then(({failCard}) => failCard('mood', 'failed', 'do this'))
    """)
    checked.append(page.run(CONTRAST))
    page.run("document.getElementById('text').value = 'lamp '.repeat(100)")
    page.click("#ask")
    page.wait(ASKED)
    checked.append(page.run(CONTRAST))
    page.run("document.getElementById('text').value = ''")
    page.click("#ask")
    checked.append(page.run(CONTRAST))
    page.run("document.querySelector('#tasks li:last-child button').click()")
    page.wait("return document.querySelector('#card-body .prose')")
    checked.append(page.run(CONTRAST))
    page.run("document.getElementById('card').close(); document.getElementById('key').showModal()")
    checked.append(page.run(CONTRAST))
    assert [found["low"] for found in checked] == [[]] * 7
    assert sum(found["seen"] for found in checked) > 400


def test_the_switch_of_the_theme_counts_more_than_the_system_and_is_remembered(page):
    dark = "return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 60"
    assert not page.run(dark)
    assert page.accessible("#theme") == ("switch", "Dark")
    page.click("#theme")
    assert page.run(dark) and page.run("return document.getElementById('theme').getAttribute('aria-checked')") == "true"
    page.go(page.run("return location.href"))
    assert page.run(dark)
    page.click("#theme")
    page.emulate(width=1280, scheme="dark")
    assert not page.run(dark)


def test_a_screen_reader_gets_a_name_for_everything(page):
    ask(page, TEXT)
    controls = page.run(CONTROLS)
    assert len(controls) > 30 and controls.count(True) == 1
    named = [number for number, is_ornament in enumerate(controls) if not is_ornament]
    unnamed = [number for number in named if not page.accessible(f"[data-number='{number}']")[1]]
    assert not unnamed
    assert page.accessible("#text") == ("textbox", "Your text")
    assert page.accessible("#forms") == ("group", "What is asked about")
    assert page.accessible("#answer-mood") == ("article", "mood")
    role, name = page.accessible("#chart-requests")
    assert role == "image" and name.startswith("requests a second: now")
    assert page.run(STRUCTURE) == {"twice": [], "missing": [], "skipped": []}
    live = page.run("return [...document.querySelectorAll('[role=status]')].map(e => e.id)")
    assert live == ["health", "receipt"] and page.run("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_have_no_scrolling_to_the_side_and_places_that_a_finger_hits(page, width):
    ask(page, TEXT)
    page.emulate(width=width, scheme="light", motion="reduce")
    page.wait("return document.documentElement.scrollWidth <= arguments[0]", width)  # what listens to sizes follows
    assert page.run(BEYOND) == [] and page.run(SMALL) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_word_is_broken_wherever_it_is_shown(page, width):
    word = "b" * (LONGEST - 10)
    page.emulate(width=width, scheme="light", motion="reduce")
    for form, fields in (("text", {"text": f"anna {word}"}), ("question", {"text": "who?", "options": f"{word}\nb"})):
        page.run("document.querySelector(`#forms input[value=${arguments[0]}]`).click()", form)
        fill = "for (const [id, text] of Object.entries(arguments[0])) document.getElementById(id).value = text"
        page.run(f"{fill}; document.getElementById('form').requestSubmit()", fields)
        page.wait(ASKED)
        assert page.texts(".answer .version")[0] == "v0001"
        page.wait("return document.documentElement.scrollWidth <= arguments[0]", width)
        assert page.run(BEYOND) == []


def test_a_text_that_shows_nothing_was_not_answered_before(page):
    ask(page, "\u200b\u00ad")
    assert cards(page) == {} and "mood the text is empty" in page.text("#unfit")
    assert page.text("#receipt").startswith("0 answers in ") and "0 passes" in page.text("#receipt")


def test_the_load_is_drawn_while_the_server_works(page, server):
    drawn = "return document.querySelector('#chart-requests path').getAttribute('d')"
    for _ in range(3):
        ask(page, TEXT)
    page.wait(drawn)
    name = page.accessible("#chart-requests")[1]
    assert re.fullmatch(r"requests a second: now [\d.]+, at most [\d.]+ in the last minute", name)
    assert float(page.text("#load-milliseconds")) > 0 and page.text("#load-waiting") == "0"


def test_the_command_that_is_shown_asks_the_same(page):
    """Quotes and line breaks in a text survive a shell, read here as a shell reads it."""
    text = 'it\'s "late"\n$HOME `x` \\'
    page.run("document.getElementById('text').value = arguments[0]", text)
    page.click("#ask")
    page.wait(ASKED)
    words = [word for word in shlex.split(page.run(CURL)) if word.strip()]
    assert words[0] == "curl" and words[1].endswith("/v1/predict")
    assert json.loads(words[words.index("-d") + 1]) == {"inputs": text}


def test_numbers_are_written_as_they_are_read(page):
    said = page.run("""
        return import("/page/dom.js").then(({percent, short, counted}) => [
          [0, 0.0004, 0.012, 0.5, 0.994, 0.9996, 1].map(percent), [0, 0.12345, 12.345, 1234.5].map(short),
          [counted(1, "pass"), counted(2, "pass"), counted(1200, "layer")]])
    """)
    assert said == [
        ["0.0 %", "< 0.1 %", "1.2 %", "50 %", "99.4 %", "> 99.9 %", "100.0 %"],
        ["0", "0.123", "12.3", "1235"],
        ["1 pass", "2 passes", "1,200 layers"],
    ]


def test_a_card_says_which_words_moved_its_answer(page, server):
    ask(page, TEXT)
    assert page.run("return document.querySelectorAll('.why').length") == 0
    page.click("#answer-mood .why-ask")
    page.wait("return document.querySelectorAll('#answer-mood .why mark').length")
    (wanted,) = explained(server.session, [(TEXT,)], ["mood"])
    (said,) = wanted["mood"].said
    marks = page.run(
        "return [...document.querySelectorAll('#answer-mood .why mark')]"
        ".map(e => [e.textContent, e.className, e.title])"
    )
    assert [word for word, _, _ in marks] == [part.text for part in said.parts]
    for (_, side, title), part in zip(marks, said.parts, strict=True):
        assert side == ("against" if part.effect < 0 else "for")
        assert float(re.search(r"it: (-?[\d.e-]+)", title)[1]) == pytest.approx(part.effect, rel=0.01, abs=1e-6)
        assert (part.becomes or "") in title
    assert page.run("return document.querySelector('#answer-mood .why p:last-child').textContent") == TEXT


def test_why_an_answer_with_hostile_labels_is_words_too(page):
    ask(page, f"the lamp {HOSTILE}")
    page.click("#answer-hostile .why-ask")
    page.wait("return document.querySelectorAll('#answer-hostile .why mark').length")
    assert page.run("return document.querySelectorAll('#answers img, #answers script').length") == 0
    assert HOSTILE in page.run("return document.querySelector('#answer-hostile .why').textContent")
    assert page.run("return document.title") != "owned"
