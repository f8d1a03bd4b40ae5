"""What a release is made of, without making one: the changelog, the names in the files, notices that are up to date."""

import re
import subprocess
import tomllib
from datetime import date
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from release import changelog, files, notices, trial
from release.__main__ import VERSION, replaced
from support.cases import cases

ROOT = Path(__file__).parents[1]
DAY = date(2026, 12, 24)
LOG = """# Changelog

The form.

## [0.2.0] - unreleased

A word before.

### Added

- An old line.

## [0.1.0] - 2026-11-01

### Fixed

- A crash.
"""


def fragments(folder, **texts):
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text("# Not a fragment\n")
    for name, text in texts.items():
        issue, topic, kind = name.lstrip("_").split("__")
        (folder / f"{issue}-{topic}.{kind}.md").write_text(text)
    return folder


def test_fragments_become_the_versions_part_in_the_order_of_issues(tmp_path):
    folder = fragments(
        tmp_path / "changes",
        _12__b__fixed="Twelve.\n",
        _3__a__fixed="Three,\nover two lines.\n",
        _7__c__added="Seven.\n",
    )
    items = changelog.lines_of(changelog.fragments(folder))
    text = changelog.released(LOG, "0.2.0", items, day=DAY)
    assert changelog.part_of(text, "0.2.0") == (
        "A word before.\n\n### Added\n\n- An old line.\n- Seven.\n\n### Fixed\n\n- Three, over two lines.\n- Twelve.\n"
    )
    assert "## [0.2.0] - 2026-12-24" in text and "unreleased" not in text
    assert changelog.part_of(text, "0.1.0") == changelog.part_of(LOG, "0.1.0")


def test_a_new_version_stands_above_the_others():
    text = changelog.released(LOG, "0.3.0", {"removed": ["- The old name."]}, day=DAY)
    assert re.findall(r"^## \[(.+?)\]", text, re.MULTILINE) == ["0.3.0", "0.2.0", "0.1.0"]
    assert changelog.part_of(text, "0.3.0") == "### Removed\n\n- The old name.\n"
    assert text.replace("## [0.3.0] - 2026-12-24\n\n### Removed\n\n- The old name.\n\n", "") == LOG


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: changelog.released(LOG, "0.1.0", {}, day=DAY),
        lambda folder: changelog.fragments(_with_file(folder, "fix-something.md")),
        lambda folder: changelog.fragments(_with_file(folder, "12.improved.md")),
        lambda folder: changelog.lines_of([_with_file(folder, "12.fixed.md", " \n") / "12.fixed.md"]),
    ],
    ids=["released", "name", "kind", "empty"],
)
def test_what_cannot_be_released_is_an_error(act, tmp_path):
    with pytest.raises(ValueError, match=r"released already|no fragment|empty"):
        act(tmp_path)


def _with_file(folder, name, text="Text.\n"):
    (folder / name).write_text(text)
    return folder


def test_fragments_of_today_can_be_released():
    pieces = changelog.fragments(ROOT / "changes")
    items = changelog.lines_of(pieces)
    assert sum(map(len, items.values())) == len(pieces) == len(list((ROOT / "changes").iterdir())) - 1
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = "99.0.0"
    assert all(line in changelog.released(text, version, items, day=DAY) for lines in items.values() for line in lines)


WHEEL = [*files.IN_WHEEL, *(f"polyhead-1.dist-info/licenses/{name}" for name in files.LEGAL)]
SDIST = [*(f"{name}x" if name.endswith("/") else name for name in files.IN_SDIST), *files.LEGAL]


def test_whole_files_pass_and_each_name_is_needed():
    files.check_wheel(WHEEL)
    files.check_sdist(SDIST)
    for check, names in ((files.check_wheel, WHEEL), (files.check_sdist, SDIST)):
        for name in names:
            with pytest.raises(ValueError, match="lacks"):
                check([each for each in names if each != name])


@cases("name", ["tests/test_x.py", "results/a.json", "conftest.py"])
def test_a_file_of_developers_in_the_wheel_is_an_error(name):
    with pytest.raises(ValueError, match=re.escape(name)):
        files.check_wheel([*WHEEL, name])


@cases("folder", files.NOT_IN_SDIST)
def test_a_folder_of_developers_in_the_source_distribution_is_an_error(folder):
    with pytest.raises(ValueError, match=re.escape(folder)):
        files.check_sdist([*SDIST, f"{folder}x"])


def test_checksums_are_read_by_sha256sum(tmp_path):
    for name, content in (("b.whl", b"wheel"), ("a.tar.gz", b"source")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "SHA256SUMS").write_text(files.checksums([tmp_path / "b.whl", tmp_path / "a.tar.gz"]))
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


def test_versions_are_written_in_place_of_exactly_one_line(tmp_path):
    path = tmp_path / "x"
    path.write_text('a\nversion = "1"\n')
    replaced(path, r'^version = ".*"$', 'version = "2"')
    assert path.read_text() == 'a\nversion = "2"\n'
    with pytest.raises(ValueError, match="0 lines"):
        replaced(path, r"^nothing$", "")


@cases("version", ["0.1.0", "1.2.3", "2.0.0rc1", "10.20.30"])
def test_versions_that_are_taken(version):
    assert VERSION.fullmatch(version)


@cases("version", ["", "1", "1.2", "v1.2.3", "1.2.3.4", "01.2.3", "1.2.3-rc1"])
def test_versions_that_are_refused(version):
    assert not VERSION.fullmatch(version)


def test_citation_and_package_have_one_version():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = dict(line.split(": ", 1) for line in (ROOT / "CITATION.cff").read_text().splitlines() if ": " in line)
    assert cited["version"] == declared["version"] and cited["license"] == declared["license"]


def test_every_extra_that_users_name_is_tried_alone():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tried = {environment.name: environment.extras for environment in trial.ENVIRONMENTS}
    assert {"core", "train", "cpu", "openvino"} <= tried.keys()
    assert {extra for extras in tried.values() for extra in extras.split(",") if extra} <= declared.keys()
    assert trial.ENVIRONMENTS[0].has_encoder and not trial.ENVIRONMENTS[0].extras
    assert [each.name for each in trial.ENVIRONMENTS if each.has_torch] == ["train"]


def test_the_extra_of_all_names_each_one_for_users():
    """OpenVINO comes by `cpu` where it is faster; `openvino` is for other machines."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = declared["all"]
    several = named.removeprefix("polyhead[").removesuffix("]").split(",")
    assert sorted(several) == sorted(declared.keys() - {"all", "openvino", "docs", "dev", "compat"})


def test_notices_name_every_package_with_its_version_and_licence():
    try:
        assert notices.page() == notices.PAGE.read_text(encoding="utf-8")
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
