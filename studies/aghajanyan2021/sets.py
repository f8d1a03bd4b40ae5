"""Which data sets learn together, and which are held out."""

from __future__ import annotations

from studies.shared.data import Set

# In nested order: the first 6, 12 and 18 are mixes of their own, each with several kinds.
MIX = (
    Set(folder="glue_sst2", group="sentiment", metric="accuracy"),
    Set(folder="glue_mnli", test="validation", group="nli", metric="accuracy"),
    Set(folder="glue_qqp", group="paraphrase", metric="accuracy"),
    Set(folder="ud_ewt_upos", group="tagging"),
    Set(folder="socialiqa", test="validation", group="commonsense"),
    Set(folder="clinc150", group="intent", metric="accuracy"),
    Set(folder="tweeteval_sentiment", group="sentiment", metric="macro_recall"),
    Set(folder="glue_qnli", test="validation", group="nli", metric="accuracy"),
    Set(folder="tweeteval_hate", group="tweets", metric="macro_f1"),
    Set(folder="mit_movie_trivia_slots", group="tagging"),
    Set(folder="ag_news", group="documents", metric="accuracy"),
    Set(folder="openbookqa", group="commonsense"),
    Set(folder="tweeteval_offensive", group="tweets", metric="macro_f1"),
    Set(folder="winogrande", test="validation", group="commonsense"),
    Set(folder="trec6", group="questions", metric="accuracy"),
    Set(folder="wnut17", group="tagging"),
    Set(folder="squad_v1", test="validation", group="reading"),
    Set(folder="superglue_wic", test="validation", group="senses", metric="accuracy"),
    Set(folder="tweeteval_irony", group="tweets", metric="accuracy"),
    Set(folder="boolq", test="validation", group="reading", metric="accuracy"),
    Set(folder="restaurant8k_slots", group="tagging"),
    Set(folder="huffpost41", group="documents", metric="accuracy"),
    Set(folder="arc_easy", group="commonsense"),
    Set(folder="subj", group="sentiment", metric="accuracy"),
)

# None of these is trained on, none of their parallel sets (snips_intent), and none that overlaps them: SNLI and both
# SICK sets hold texts of STS-B. What rows of other sets hold of their texts is dropped.
HELD_OUT = (
    Set(folder="tweeteval_emotion", name="emotion", metric="macro_f1"),
    Set(folder="glue_cola", name="cola", test="validation", metric="matthews"),
    Set(folder="glue_rte", name="rte", test="validation", metric="accuracy"),
    Set(folder="glue_mrpc", name="mrpc", metric="accuracy"),
    Set(folder="glue_stsb", name="stsb", range=(0.0, 5.0), metric="pearson"),
    Set(folder="banking77", metric="accuracy"),
    Set(folder="snips_slots"),
    Set(folder="commonsenseqa", test="validation"),
)
NESTED = (6, 12, 18, 24)
