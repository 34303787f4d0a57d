"""Games of TextArena and environments of Gymnasium as episodes, and how they compare with the libraries' own loops."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from midstream.core.errors import InfrastructureError, MidstreamError, RecipeError, RewardError
from midstream_environments.episodes import EpisodeCases
from midstream_environments.games import GymnasiumConfig, TextArenaConfig
from midstream_environments.library import Library, library_of
from midstream_environments.reward import score_of
from playing import evaluated, heard, played, replies, run_script

GAMES = ["GuessTheNumber-v0", "Mastermind-v0", "FrozenLake-v0-random", "Minesweeper-v0-small", "TowerOfHanoi-v0"]

# The library's own loop, as its documentation has it: what it shows in full, its reward and why.
TEXTARENA_LOOP = """
import json, sys
import textarena as ta

played = []
for game, seed, actions in json.load(sys.stdin):
    env = ta.make(game)
    env.reset(num_players=1, seed=seed)
    done, seen = False, ""
    for action in actions:
        assert not done
        _, seen = env.get_observation()
        done, _ = env.step(action=action)
    rewards, info = env.close()
    played.append([done, rewards, info[0].get("reason"), seen])
print(json.dumps(played))
"""
GYMNASIUM_LOOP = """
import json, sys
import gymnasium

played = []
for name, arguments, seed, actions in json.load(sys.stdin):
    env = gymnasium.make(name, **arguments)
    env.reset(seed=seed)
    total, over = 0.0, False
    for action in actions:
        assert not over
        _, reward, terminated, truncated, _ = env.step(action)
        total, over = total + reward, terminated or truncated
    played.append([total, over])
print(json.dumps(played))
"""


def place_of(question: str) -> tuple[str, int]:
    """The game or environment, and the seed, of a question."""
    name, _, seed = question.rpartition(", seed ")
    return name, int(seed)


def source_of(config: Any) -> EpisodeCases:
    return EpisodeCases(library_of(config))


def ended(library: Library) -> None:
    asyncio.run(library.close())


def test_scores_of_textarena_are_those_of_its_own_loop(interpreter: Any, tmp_path: Path) -> None:
    tasks = {"type": "textarena", "games": GAMES, "episodes": 80, "python": interpreter("games")}
    sets = [{"name": "all", "split": "train", "per_family": 40}]
    played = evaluated(tmp_path, "textarena", tasks, **{"evaluation.sets": sets})
    assert len(played) == 200
    assert not [one.error for one in played if one.status != "ok"]
    given = [[*place_of(one.question), replies(one)] for one in played]
    assert all(one.reward is not None for one in played)
    for one, (done, rewards, reason, seen) in zip(
        played, run_script(interpreter("games"), TEXTARENA_LOOP, given), strict=True
    ):
        assert done
        assert one.reward is not None
        assert one.reward.value == pytest.approx(rewards["0"])
        assert one.reward.feedback == (reason or "")
        # The library shows the whole game in each turn, with the moves (one game says that they are its own); here each
        # turn has only what is new.
        moves = {said if "[" in said else f"[{said}]" for said in replies(one)}
        shown = "".join(
            re.split("|".join(re.escape(f"\n[{name}] {move}") for name in ("Player", "GAME") for move in moves), seen)
        )
        assert shown == "".join(f"\n{text}" for text in heard(one) if text != "(no message)")
    assert len({one.reward.value for one in played if one.reward}) > 5


def test_scores_of_gymnasium_are_those_of_its_own_loop(interpreter: Any, tmp_path: Path) -> None:
    sets = [{"name": "all", "split": "train", "count": 200}]
    arguments = {"is_slippery": True}
    tasks = {
        "type": "gymnasium",
        "environment": "FrozenLake-v1",
        "arguments": arguments,
        "episodes": 300,
        "python": interpreter("games"),
    }
    played = evaluated(tmp_path, "gymnasium", tasks, **{"evaluation.sets": sets})
    assert not [one.error for one in played if one.status != "ok"]
    given = []
    for one in played:
        actions = [int(said.split()[-1]) for said in replies(one) if said != "I pass."]
        given.append(["FrozenLake-v1", arguments, place_of(one.question)[1], actions])
    for one, (total, over) in zip(played, run_script(interpreter("games"), GYMNASIUM_LOOP, given), strict=True):
        assert over
        assert one.reward is not None
        assert one.reward.value == total
    assert any("That reply has no action" in text for one in played for text in heard(one))


@pytest.mark.parametrize(
    ("games", "problem"),
    [
        (["Wordle-v0"], "Resource 'words' not found"),
        (["TicTacToe-v0"], "'TicTacToe-v0' is for more than one player"),
        (["PublicGoodsGame-v0"], "'PublicGoodsGame-v0' is for more than one player"),
        (["GuessTheNumber-v0", "Nope-v0"], "Environment Nope-v0 not found"),
        (["TwentyQuestions-v0"], "OPENROUTER_API_KEY"),
    ],
)
def test_a_game_that_cannot_be_played_here_is_refused_with_its_cause(
    interpreter: Any, games: list[str], problem: str
) -> None:
    config = TextArenaConfig.model_validate({"games": games, "python": interpreter("games")})
    with pytest.raises(RecipeError, match=re.escape(problem)):
        library_of(config).call("rows")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"environment": "CartPole-v1"}, "CartPole-v1 has no text"),
        ({"environment": "Blackjack-v1"}, "Blackjack-v1 has no text"),
        ({"environment": "Nope-v1"}, "Nope"),
        ({"environment": "no_such_module:Nope-v1"}, "no_such_module"),
        ({"environment": "FrozenLake-v1", "actions": ["left"]}, "names 1 actions"),
    ],
)
def test_an_environment_that_is_no_text_is_refused(interpreter: Any, settings: dict[str, Any], problem: str) -> None:
    config = GymnasiumConfig.model_validate({**settings, "python": interpreter("games")})
    with pytest.raises(MidstreamError, match=problem):
        library_of(config).call("rows")


@pytest.fixture
def words(interpreter: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tasks of an environment of our own, in a module that only its process has."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made: list[EpisodeCases] = []

    def make(**settings: Any) -> EpisodeCases:
        table = {"environment": "gym_words:Words-v0", "python": interpreter("games"), **settings}
        made.append(source_of(GymnasiumConfig.model_validate(table)))
        return made[-1]

    yield make
    for each in made:
        ended(each.library)


def test_actions_and_observations_can_be_texts(words: Any) -> None:
    source = words()
    found, episode = played(source, "one", "a word that is too long", "read", "two")
    assert found[1] == "one"
    assert "no action" in found[2]
    # It has no standard input, and its standard output is not the library's.
    assert found[3:] == ["nothing", "two (over)"]
    assert episode.system == "Description\nSay a word.\n\nEach of your replies is one action, and nothing else."
    assert episode.outcome() == {"reward": 1.0, "feedback": "truncated", "turns": 4, "range": [0.0, 1.0]}
    assert played(source, "one")[0] == found[:2]
    assert played(words(reward="last", max_turns=1), "stop")[1].outcome()["feedback"] == "terminated"
    assert played(words(max_turns=1, unfinished=-2.0), "one")[1].outcome()["reward"] == -2.0


@pytest.mark.parametrize(
    ("word", "code", "cause"),
    [
        ("raise", "environment-failed", "no such word"),
        ("exit", "environment-failed", "ended during 'reply'"),
        ("hang", "environment-timeout", "more than 3 s"),
    ],
)
def test_an_environment_that_fails_is_an_error_and_the_next_episode_is_sound(
    words: Any, word: str, code: str, cause: str
) -> None:
    source = words(call_s=3.0 if word == "hang" else 30.0)
    with pytest.raises(InfrastructureError, match=cause) as caught:
        played(source, word)
    assert caught.value.code == code
    assert played(source, "stop")[0][-1] == "stop (over)"


def test_a_reward_that_is_no_number_is_an_error(words: Any) -> None:
    outcome = played(words(), "nan")[1].outcome()
    with pytest.raises(RewardError, match="nan"):
        score_of(outcome, (0.0, 1.0))


def test_what_an_environment_starts_ends_with_it(words: Any) -> None:
    source = words()
    pid = int(played(source, "child")[0][1])
    os.kill(pid, 0)
    ended(source.library)
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_seed_of_a_game_is_in_one_split_whatever_wrappers_the_game_has(interpreter: Any) -> None:
    found: dict[str, set[str]] = {}
    for game in ("GuessTheNumber-v0", "GuessTheNumber-v0-train"):
        config = TextArenaConfig.model_validate({"games": [game], "episodes": 60, "python": interpreter("games")})
        cases = source_of(config)
        for split in cases.splits:
            for task in cases.tasks(split):
                found.setdefault(task.question, set()).add(split)
        ended(cases.library)
    assert len(found) == 60
    assert {len(splits) for splits in found.values()} == {1}


def test_episodes_next_to_each_other_are_those_of_their_seeds(interpreter: Any) -> None:
    # 2048 draws its tiles as it goes; RushHour from sets, whose order depends on the process.
    games = ["2048-v0-ultra-easy", "RushHour-v0"]
    moves = ["[Up]", "[Left]", "[Down]", "[Right]"] * 4

    async def play(source: EpisodeCases, together: bool) -> list[list[str]]:
        tasks = sorted(
            (task for split in source.splits for task in source.tasks(split)), key=lambda task: task.question
        )
        episodes = [source.open(task, seed=place) for place, task in enumerate(tasks)]
        said = [[] for _ in episodes]
        turns = [*range(len(moves) + 1)]
        order = [(turn, place) for turn in turns for place in range(len(tasks))]
        for turn, place in order if together else sorted(order, key=lambda step: step[1]):
            if turn == 0:
                said[place].append((await episodes[place].begin()).text)
            elif tasks[place].family != "RushHour-v0":
                said[place].append((await episodes[place].reply(moves[turn - 1])).text)
        for episode in episodes:
            await episode.close()
        return said

    found = []
    for together in (True, False):
        config = TextArenaConfig.model_validate({"games": games, "episodes": 12, "python": interpreter("games")})
        library = Library("games", config)
        found.append(asyncio.run(play(EpisodeCases(library), together)))
        ended(library)
    assert found[0] == found[1]
    assert len({"".join(said) for said in found[0]}) > 20


def test_an_episode_that_meets_its_limit_has_what_it_has(interpreter: Any, tmp_path: Path) -> None:
    tasks = {
        "type": "textarena",
        "games": ["Mastermind-v0"],
        "episodes": 20,
        "python": interpreter("games"),
        "max_turns": 1,
    }
    sets = [{"name": "all", "split": "train", "count": 8}]
    played = evaluated(tmp_path, "textarena", tasks, **{"evaluation.sets": sets})
    assert {len(one.turns) for one in played} == {1}
    assert {(one.reward.value, one.reward.feedback) for one in played if one.reward} == {
        (0.0, "the game was not finished")
    }
