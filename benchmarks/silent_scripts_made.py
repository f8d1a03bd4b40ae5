"""Sentences with labelled places and persons in many scripts, made of sentences to fill in and of lists of names.

Gold is in characters, as an annotator marks it: a name
alone, without the particle, preposition or ending that is written onto it.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator
from itertools import product
from typing import Literal

from polyhead.values import Value

Row = tuple[str, list[dict[str, object]]]
"""A text, and its spans `{start, end, label}`."""

# Of each script: sentences with LOC and PER in them, places, persons. No row of train has the last third of the names.
# Texts of NFD are written with their accents as characters of their own.
NFD = ("Latin, decomposed", "Greek, decomposed", "Cyrillic, decomposed", "Hangul, decomposed")
SCRIPTS: dict[str, tuple[str, str, str]] = {
    "Latin, decomposed": (
        "PER kam gestern aus LOC zurück.|In LOC wohnt PER seit März.|PER möchte nächste Woche nach LOC.|"
        "Der Zug nach LOC fährt später, sagt PER.|Grüße aus LOC von PER!|PER fährt über LOC.|Für PER ist LOC schön.",
        "Zürich Köln Nürnberg Łódź Málaga Besançon Münster Tromsø Göteborg Orléans Düren Århus",
        "Jürgen Zoë José Ángela Björn Müller Inés Noël Jörg Renée Gérard Bärbel",
    ),
    "Greek, decomposed": (
        "Ο PER ζει στην LOC.|Το τρένο για LOC έφυγε, λέει ο PER.|Χθες ο PER ήρθε από LOC.|Η LOC αρέσει στον PER.|"
        "Ο PER μένει κοντά στη LOC.|Γράμμα από LOC για τον PER.|Αύριο ο PER πάει LOC.",
        "Αθήνα Πάτρα Λάρισα Κέρκυρα Ρόδος Χανιά Καβάλα Σπάρτη Τρίπολη Χίος Νάξος Κόρινθος",
        "Γιώργος Νίκος Κώστας Δημήτρης Γιάννης Σπύρος Πέτρος Παύλος Ανδρέας Ηλίας Θωμάς Μάριος",
    ),
    "Cyrillic, decomposed": (
        "PER живёт в городе LOC.|Вчера PER приехал из города LOC.|Поезд в LOC ушёл, сказал PER.|"
        "LOC, пишет PER, мой дом.|Завтра PER едет в LOC.|Это PER, он из LOC.|Город LOC знает PER.",
        "Йошкар Бийск Ёлкино Майкоп Ейск Зарайск Копейск Губкинский Горький Бейск Райчихинск Тайшет",
        "Андрей Сергей Алексей Тимофей Матвей Николай Фёдор Пётр Семён Юрий Василий Дмитрий",
    ),
    "Hebrew with points": (
        "PER גָּר בָּעִיר LOC.|אֶתְמוֹל PER הִגִּיעַ מִן LOC.|הָרַכֶּבֶת אֶל LOC יָצְאָה, אָמַר PER.|מָחָר PER נוֹסֵעַ אֶל LOC.|"
        "מִכְתָּב מִן LOC אֶל PER.|PER אוֹהֵב אֶת LOC.|בָּעִיר LOC פָּגַשְׁנוּ אֶת PER.",
        "חֵיפָה יָפוֹ אֵילַת צְפַת עַכּוֹ טְבֶרְיָה נָצְרַת אַשְׁדּוֹד לוֹד רַמְלָה נְתַנְיָה עֲרָד",
        "דָּוִד מֹשֶׁה שָׂרָה רִבְקָה יוֹסֵף דָּנִיֵּאל אַבְרָהָם מִרְיָם יַעֲקֹב רָחֵל שְׁמוּאֵל לֵאָה",
    ),
    "Hebrew, prefixes written on names": (
        "PER גָּר בְּLOC.|אֶתְמוֹל PER הִגִּיעַ מִLOC.|הָרַכֶּבֶת לְLOC יָצְאָה, אָמַר PER.|מָחָר PER נוֹסֵעַ לְLOC.|"
        "מִכְתָּב מִLOC לְPER.|PER אוֹהֵב אֶת LOC.|בְּLOC פָּגַשְׁנוּ אֶת PER.",
        "חֵיפָה יָפוֹ אֵילַת צְפַת עַכּוֹ טְבֶרְיָה נָצְרַת אַשְׁדּוֹד לוֹד רַמְלָה נְתַנְיָה עֲרָד",
        "דָּוִד מֹשֶׁה שָׂרָה רִבְקָה יוֹסֵף דָּנִיֵּאל אַבְרָהָם מִרְיָם יַעֲקֹב רָחֵל שְׁמוּאֵל לֵאָה",
    ),
    "Arabic with vowels": (
        "يَسْكُنُ PER فِي LOC.|وَصَلَ PER أَمْسِ مِنْ LOC.|قِطَارُ LOC تَأَخَّرَ، قَالَ PER.|غَدًا يُسَافِرُ PER إِلَى LOC.|"
        "رِسَالَةٌ مِنْ LOC إِلَى PER.|يُحِبُّ PER مَدِينَةَ LOC.|رَأَيْنَا PER فِي LOC.",
        "دِمَشْق بَغْدَاد عَمَّان تُونِس حَلَب بَيْرُوت مَكَّة صَنْعَاء مَسْقَط الدَّوْحَة طَنْجَة أَسْوَان",
        "مُحَمَّد أَحْمَد خَالِد فَاطِمَة حَسَن مَرْيَم سَعِيد لَيْلَى عُمَر زَيْنَب يُوسُف نُور",
    ),
    "Devanagari": (
        "PER कल LOC से आया।|LOC में PER रहता है।|PER अगले हफ़्ते LOC जाएगा।|LOC की गाड़ी चली गई, PER ने कहा।|"
        "यह PER है, वह LOC का है।|PER को LOC पसंद है।|हम LOC में PER से मिले।",
        "दिल्ली मुंबई कोलकाता लखनऊ पुणे शिमला हरिद्वार नागपुर इंदौर भोपाल काशी हैदराबाद",
        "रमेश सीता गीता मोहन सुनील प्रिया अमित पूजा विजय राधा सुरेश किरण",
    ),
    "Bengali": (
        "PER গতকাল LOC থেকে এসেছে।|PER LOC শহরে থাকে।|LOC যাওয়ার ট্রেন ছেড়ে গেছে, বলল PER।|কাল PER LOC যাবে।|"
        "এটা PER, সে LOC থেকে।|PER এখন LOC শহরে।|LOC শহরে PER কাজ করে।",
        "ঢাকা খুলনা সিলেট রংপুর কুমিল্লা বরিশাল রাজশাহী যশোর পাবনা নোয়াখালী দিনাজপুর টাঙ্গাইল",
        "রহিম করিম সীমা মিতা সুমন রিতা কামাল শিলা হাসান নীলা তুহিন মৌসুমী",
    ),
    "Tamil": (
        "PER நேற்று LOC இருந்து வந்தார்.|PER இப்போது LOC நகரில்.|LOC ரயில் போய்விட்டது என்றார் PER.|நாளை PER LOC செல்வார்.|"
        "இவர் PER, ஊர் LOC.|PER வீடு LOC நகரில்.|LOC நகரில் PER இருக்கிறார்.",
        "சென்னை மதுரை கோவை சேலம் திருச்சி வேலூர் தஞ்சாவூர் ஈரோடு நெல்லை கரூர் தேனி காஞ்சிபுரம்",
        "முருகன் குமார் லட்சுமி மீனா ராஜா செல்வி கண்ணன் வள்ளி அருண் தேவி சுரேஷ் கமலா",
    ),
    "Thai": (
        "PERอยู่ที่LOC|เมื่อวานPERมาจากLOC|รถไฟไปLOCออกแล้วPERบอก|พรุ่งนี้PERจะไปLOC|จดหมายจากLOCถึงPER|"
        "PERชอบเมืองLOCมาก|เราพบPERที่LOC",
        "กรุงเทพ เชียงใหม่ ภูเก็ต ขอนแก่น อยุธยา ระยอง สุโขทัย น่าน ลำปาง ตรัง พะเยา สงขลา",
        "สมชาย สมหญิง วิชัย มานี มานะ ปิติ ชูใจ สุดา ประเสริฐ นภา อรุณ กมล",
    ),
    "Lao": (
        "PERຢູ່LOC|ມື້ວານນີ້PERມາຈາກLOC|ລົດໄປLOCອອກແລ້ວPERເວົ້າ|ມື້ອື່ນPERຈະໄປLOC|ຈົດໝາຍຈາກLOCເຖິງPER|PERມັກເມືອງLOC|ພວກເຮົາພົບPERຢູ່LOC",
        "ວຽງຈັນ ຫຼວງພະບາງ ປາກເຊ ສະຫວັນນະເຂດ ວັງວຽງ ທ່າແຂກ ຊຳເໜືອ ປາກຊັນ ອັດຕະປື ສາລະວັນ ເຊກອງ ບໍ່ແກ້ວ",
        "ສົມຈິດ ບຸນມີ ຄຳແພງ ນາລີ ວິໄລ ແສງ ດາວ ມະນີ ພອນ ຈັນ ສີດາ ທອງ",
    ),
    "Khmer": (
        "PERរស់នៅLOC|ម្សិលមិញPERមកពីLOC|រថភ្លើងទៅLOCចេញហើយPERនិយាយ|ស្អែកPERនឹងទៅLOC|សំបុត្រពីLOCដល់PER|PERចូលចិត្តក្រុងLOC|យើងជួបPERនៅLOC",
        "ភ្នំពេញ សៀមរាប បាត់ដំបង កំពត កែប តាកែវ ក្រចេះ កំពង់ចាម ប៉ៃលិន ព្រៃវែង ស្វាយរៀង មណ្ឌលគិរី",
        "សុខា ដារ៉ា វិចិត្រ ចន្ថា បូរី ម៉ាលី សោភា រតនៈ កញ្ញា ពិសិដ្ឋ វណ្ណា ស្រីមុំ",
    ),
    "Burmese": (
        "PERသည်LOCတွင်နေသည်။|မနေ့ကPERသည်LOCမှလာသည်။|LOCသို့ရထားထွက်ပြီဟုPERပြောသည်။|မနက်ဖြန်PERသည်LOCသို့သွားမည်။|"
        "LOCမှPERသို့စာ။|PERသည်LOCကိုကြိုက်သည်။|LOCတွင်PERကိုတွေ့သည်။",
        "ရန်ကုန် မန္တလေး ပဲခူး ပုဂံ စစ်တွေ မော်လမြိုင် ပုသိမ် တောင်ကြီး မြိတ် ဟားခါး လားရှိုး မကွေး",
        "အောင်အောင် မောင်မောင် စုစု ဇော်ဇော် နီလာ သီရိ ကျော်ကျော် မြမြ ထွန်းထွန်း ခင်ခင် လှလှ ဝင်းဝင်း",
    ),
    "Han": (
        "PER昨天从LOC回来了。|PER现在住在LOC。|去LOC的火车已经开了，PER说。|明天PER要去LOC。|这封信从LOC寄给PER。|"
        "PER很喜欢LOC。|我们在LOC见到了PER。",
        "北京 上海 广州市 深圳 杭州 成都 哈尔滨 西安 乌鲁木齐 大连 石家庄 拉萨",
        "王小明 李华 张伟 刘洋 陈静 赵磊 周杰 吴芳 孙丽 欧阳雪 郑强 何敏",
    ),
    "Kana": (
        "きのうPERはLOCからきました。|PERはLOCにすんでいます。|LOCゆきのでんしゃはもうでたとPERがいいました。|"
        "あしたPERはLOCへいきます。|LOCからPERへのてがみ。|PERはLOCがすきです。|LOCでPERにあいました。",
        "とうきょう おおさか なごや ベルリン パリ ロンドン さっぽろ ながの マドリード ひろしま ローマ かごしま",
        "たろう はなこ ジョン マリア けんじ ゆうこ ポール アンナ さくら ひろし リサ みどり",
    ),
    "Hangul": (
        "PER은 어제 LOC에서 왔다.|PER이 LOC에 산다.|LOC행 기차는 떠났다고 PER이 말했다.|내일 PER은 LOC으로 간다.|"
        "LOC에서 PER에게 온 편지.|PER은 LOC을 좋아한다.|LOC에서 PER을 만났다.",
        "서울 부산 대전 인천 광주 울산 수원 춘천 전주 강릉 목포 여수",
        "민준 서연 지훈 수진 현우 은영 동현 미경 성민 유진 재석 하늘",
    ),
}
SCRIPTS["Hangul, decomposed"] = SCRIPTS["Hangul"]


class Drawn(Value):
    """Rows to learn from; others with the same names in other sentences, and others with names that train has not."""

    train: list[Row]
    known: list[Row]
    new: list[Row]


def drawn(script: str, seed: int, *, train: int = 100, test: int = 40) -> Drawn:
    """Rows of a script, drawn by the seed; no text of test is one of train."""
    chance = random.Random(f"{script} {seed}")
    sentences, places, persons = _parts(script)
    several = [
        [_marked(*row) for row in product(sentences, *names)]
        for names in ((places[:8], persons[:8]), (places[8:], persons[8:]))
    ]
    known, new = (chance.sample(rows, len(rows)) for rows in several)
    return Drawn(train=known[:train], known=known[train : train + test], new=new[:test])


def every_row() -> Iterator[tuple[str, Row]]:
    """Every sentence of every script with every name once, under the script."""
    for script in SCRIPTS:
        sentences, places, persons = _parts(script)
        for place, person in zip(places, persons, strict=True):
            for sentence in sentences:
                yield script, _marked(sentence, place, person)


def _parts(script: str) -> tuple[list[str], list[str], list[str]]:
    form: Literal["NFC", "NFD"] = "NFD" if script in NFD else "NFC"
    sentences, places, persons = (unicodedata.normalize(form, part) for part in SCRIPTS[script])
    return sentences.split("|"), places.split(), persons.split()


def _marked(sentence: str, place: str, person: str) -> Row:
    names, text, spans = {"LOC": place, "PER": person}, "", list[dict[str, object]]()
    while sentence:
        at, label = min((sentence.find(label), label) for label in names if label in sentence)
        text += sentence[:at]
        spans.append({"start": len(text), "end": len(text) + len(names[label]), "label": label})
        text, sentence = text + names[label], sentence[at + len(label) :]
        if not any(name in sentence for name in names):
            text, sentence = text + sentence, ""
    return text, spans
