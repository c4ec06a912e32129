"""The catalog finds each lab by its file's name and gives it for a number, a name or a part of it."""

import importlib

import pytest

import labs
from labs import catalog

LAB_FILE = '''
from dataclasses import dataclass
from labs.protocol import Lab

@dataclass(frozen=True)
class Config:
    size: int = 1

LAB = Lab({number}, "{name}", "A question?", Config, Config(), lambda session, config: None)
'''


@pytest.fixture
def lab_folder(tmp_path, monkeypatch):
    """A catalog of three labs: 91 red-cache, 92 blue-cache, 93 clock."""
    for number, name in ((91, "red-cache"), (92, "blue-cache"), (93, "clock")):
        file = tmp_path / f"lab_{number}_{name.replace('-', '_')}.py"
        file.write_text(LAB_FILE.format(number=number, name=name))
    (tmp_path / "lab_notes.py").write_text("raise AssertionError('not a lab')")
    monkeypatch.setattr(labs, "__path__", [str(tmp_path)])
    importlib.invalidate_caches()
    return tmp_path


def test_labs_are_listed_by_number_without_being_imported(lab_folder):
    assert [entry.label for entry in catalog.find_labs()] == ["91-red-cache", "92-blue-cache", "93-clock"]


@pytest.mark.parametrize("text", ["93", " 93 ", "lab93", "lab-93", "lab_93_clock", "clock", "CLOCK", "93-clock", "loc"])
def test_a_lab_is_found_by_number_name_or_unique_part(lab_folder, text):
    assert catalog.lookup(text).name == "clock"


def test_a_number_needs_no_leading_zero(tmp_path, monkeypatch):
    (tmp_path / "lab_07_x.py").write_text("")
    monkeypatch.setattr(labs, "__path__", [str(tmp_path)])
    assert catalog.lookup("7").number == catalog.lookup("07").number == 7


def test_an_underscore_reads_as_a_dash(lab_folder):
    assert catalog.lookup("red_cache").number == 91


def test_a_part_of_several_names_is_refused_with_these(lab_folder):
    with pytest.raises(catalog.UnknownLab, match=r"'cache' is part of several labs; accepted: one of 91 red-cache, 92 blue"):
        catalog.lookup("cache")


@pytest.mark.parametrize("text", ["", "94", "nope", "9"])
def test_an_unknown_lab_is_refused_with_the_accepted_names(lab_folder, text):
    with pytest.raises(catalog.UnknownLab) as refused:
        catalog.lookup(text)
    assert str(refused.value).endswith("accepted: 91 red-cache, 92 blue-cache, 93 clock")
    assert "\n" not in str(refused.value)


def test_a_lab_whose_file_has_another_name_is_found_out(lab_folder):
    (lab_folder / "lab_95_other.py").write_text(LAB_FILE.format(number=94, name="other"))
    with pytest.raises(AssertionError, match="file name must say the same"):
        catalog.lookup("95").load()


def test_the_source_of_a_lab_is_its_file(lab_folder):
    assert catalog.lookup("93").source_files["labs/lab_93_clock.py"] == lab_folder / "lab_93_clock.py"


def test_every_lab_of_this_package_loads_under_its_own_name():
    for entry in catalog.find_labs():
        lab = entry.load()
        assert lab.question.endswith("?")
        assert isinstance(lab.quick, lab.config_type)
        assert catalog.lookup(entry.name) == catalog.lookup(f"{entry.number}") == entry
