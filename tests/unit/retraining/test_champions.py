"""The line of champions: what a roll-back restores, whatever was promoted, restored or moved by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from updraft.retraining.champions import ChampionChange, champions, previous_champion

VERSIONS = st.sampled_from(["1", "2", "3", "4"])
CHANGES = st.lists(st.builds(ChampionChange, VERSIONS, st.none() | VERSIONS, st.booleans()), max_size=12)


def promoted(*versions: str) -> list[ChampionChange]:
    return [ChampionChange(version, over) for version, over in zip(versions, (None, *versions), strict=False)]


def test_roll_backs_go_back_one_by_one() -> None:
    changes = promoted("1", "2", "3")
    assert previous_champion(changes, "3") == "2"
    changes.append(ChampionChange("2", "3", back=True))
    assert previous_champion(changes, "2") == "1"
    changes.append(ChampionChange("1", "2", back=True))
    assert previous_champion(changes, "1") is None


def test_a_promotion_after_a_roll_back_goes_back_to_the_restored_version() -> None:
    changes = [*promoted("1", "2"), ChampionChange("1", "2", back=True), ChampionChange("3", "1")]
    assert champions(changes) == ("1", "3")


def test_a_named_version_ends_the_line_there() -> None:
    assert champions([*promoted("1", "2", "3", "4"), ChampionChange("2", "4", back=True)]) == ("1", "2")


def test_a_version_that_was_never_champion_can_be_restored() -> None:
    changes = [*promoted("1", "3"), ChampionChange("2", "3", back=True)]
    assert previous_champion(changes, "2") == "3"


def test_an_alias_that_a_person_moved_is_a_champion_too() -> None:
    assert previous_champion(promoted("1"), "7") == "1"
    assert champions([*promoted("1"), ChampionChange("2", over="7")]) == ("1", "7", "2")


def test_without_a_champion_the_last_one_of_the_line_stays_out() -> None:
    assert previous_champion([], None) is None
    assert previous_champion([], "1") is None


@given(CHANGES)
def test_the_last_change_holds_the_alias_and_no_version_is_twice_in_the_line(changes: list[ChampionChange]) -> None:
    line = champions(changes)
    assert len(set(line)) == len(line)
    assert line[-1:] == tuple(change.version for change in changes[-1:])


@given(CHANGES)
def test_roll_backs_without_a_name_always_end(changes: list[ChampionChange]) -> None:
    current = champions(changes)[-1] if changes else None
    for _ in range(10):
        target = previous_champion(changes, current)
        if target is None:
            return
        changes = [*changes, ChampionChange(target, current, back=True)]
        current = target
    raise AssertionError("it goes round")
