"""Formats of data files beyond plain rows, one a file."""

from polyhead.tasks.formats.argilla import Argilla
from polyhead.tasks.formats.base import ANNOTATIONS, AnnotationFormat, FileFormat, RecordFormat, register_annotations
from polyhead.tasks.formats.conll import Conll
from polyhead.tasks.formats.docbin import SpacyBinary
from polyhead.tasks.formats.doccano import Doccano
from polyhead.tasks.formats.fasttext import FastText
from polyhead.tasks.formats.folders import Brat, ClassFolders
from polyhead.tasks.formats.label_studio import LabelStudio, LabelStudioShort
from polyhead.tasks.formats.prodigy import Prodigy
from polyhead.tasks.formats.spacy import Spacy
from polyhead.tasks.formats.squad import Squad

__all__ = ["ANNOTATIONS", "AnnotationFormat", "FileFormat", "RecordFormat", "register_annotations"]

_KNOWN: tuple[type[AnnotationFormat], ...] = (
    *(Prodigy, LabelStudio, LabelStudioShort, Argilla, Squad, Doccano, Spacy),
    *(Conll, FastText, SpacyBinary, Brat, ClassFolders),
)
for _known in _KNOWN:
    register_annotations(_known)
