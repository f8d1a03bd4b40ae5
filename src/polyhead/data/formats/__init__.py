"""Formats of data files beyond plain rows, one a file."""

from polyhead.data.formats.argilla import Argilla
from polyhead.data.formats.base import ANNOTATIONS, AnnotationFormat, FileFormat, RecordFormat, register_annotations
from polyhead.data.formats.conll import Conll
from polyhead.data.formats.docbin import SpacyBinary
from polyhead.data.formats.doccano import Doccano
from polyhead.data.formats.fasttext import FastText
from polyhead.data.formats.folders import Brat, ClassFolders
from polyhead.data.formats.label_studio import LabelStudio, LabelStudioShort
from polyhead.data.formats.prodigy import Prodigy
from polyhead.data.formats.spacy import Spacy
from polyhead.data.formats.squad import Squad

__all__ = ["ANNOTATIONS", "AnnotationFormat", "FileFormat", "RecordFormat", "register_annotations"]

_KNOWN: tuple[type[AnnotationFormat], ...] = (
    *(Prodigy, LabelStudio, LabelStudioShort, Argilla, Squad, Doccano, Spacy),
    *(Conll, FastText, SpacyBinary, Brat, ClassFolders),
)
for _known in _KNOWN:
    register_annotations(_known)
