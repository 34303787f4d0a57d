"""Every benchmark and training set by name. docs/datasets.md shows this table, and a test compares the two.

None of their questions is in this repository: they are read from the user's file or from the Hugging Face Hub.
Repositories, fields and sizes were looked up in stored copies of their pages and in code that reads them; what could
not be is said in `unverified`. How the papers took their questions: arXiv 2510.05592 and its repository (AgentFlow),
2505.01441 (ARTIST), 2510.08191 (Training-Free GRPO).
"""

from __future__ import annotations

from typing import Any

from midstream.core.errors import RecipeError
from midstream.core.protocols import TaskSource
from midstream.tasks import conversions
from midstream.tasks.benchmark import Benchmark, BenchmarkTasks, Config, find
from midstream.worlds import game24
from midstream.worlds.gazetteer import tasks as gazetteer

_LETTER = "Answer with the letter of the right option."
_BRIEF = (
    "Answer with a number, with as few words as possible, or with a list of such, parted by commas; without units and "
    "signs such as $ and %, commas in numbers, articles and abbreviations, unless the question asks for them."
)
_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
_FIRST_100 = "AgentFlow: 100 at random; its file has {}, of which its script takes the first 100"
_QA: dict[str, Any] = {
    "use": "evaluation",
    "reward": "exact_match",
    "convert": conversions.open_question,
    "repository": _FLASHRAG,
    "copy_licence": "CC BY-SA 4.0",
    "columns": ("question", "golden_answers"),
}
_DEV = "the public development set is our test split, as everybody reports it"
_CONTEST: dict[str, Any] = {
    "use": "evaluation",
    "reward": "math",
    "convert": conversions.contest,
    "licence": "none stated (MAA)",
    "republish": "unclear",
}

QUESTIONS = (
    Benchmark(
        **_QA,
        name="bamboogle",
        title="Bamboogle",
        asks="two-hop questions that search engines answer wrongly",
        configs=("bamboogle",),
        splits={"test": "test"},
        sizes={"test": 125},
        licence="MIT",
        paper="AgentFlow: all 125",
    ),
    Benchmark(
        **_QA,
        name="2wiki",
        title="2WikiMultihopQA",
        asks="multi-hop questions over two Wikipedia pages",
        configs=("2wikimultihopqa",),
        splits={"train": "train", "test": "dev"},
        sizes={"train": 15_000, "test": 12_576},
        licence="Apache-2.0",
        paper=_FIRST_100.format(200),
        notes=_DEV,
    ),
    Benchmark(
        **_QA,
        name="hotpotqa",
        title="HotpotQA",
        asks="multi-hop questions over Wikipedia",
        configs=("hotpotqa",),
        splits={"train": "train", "test": "dev"},
        sizes={"train": 90_447, "test": 7_405},
        licence="CC BY-SA 4.0",
        paper=_FIRST_100.format(100),
        notes=_DEV,
    ),
    Benchmark(
        **_QA,
        name="musique",
        title="MuSiQue",
        asks="two- to four-hop questions that cannot be cut short",
        configs=("musique",),
        splits={"train": "train", "test": "dev"},
        sizes={"train": 19_938, "test": 2_417},
        licence="CC BY 4.0",
        paper=_FIRST_100.format(200),
        notes=_DEV,
    ),
    Benchmark(
        name="gaia",
        title="GAIA, text only",
        use="evaluation",
        asks="questions to a general assistant with tools",
        reward="gaia",
        convert=conversions.gaia,
        repository="gaia-benchmark/GAIA",
        configs=("2023_all",),
        splits={"test": "validation"},
        sizes={"test": 127},
        columns=("Question", "Final answer", "Level", "file_name"),
        licence="none stated",
        gated=True,
        republish="no",
        instruction=_BRIEF,
        paper="AgentFlow: the 127 of the validation set that have no file",
        notes="families are levels; the 38 with a file are left out; the test set's answers are secret; its page asks "
        "not to share it where crawlers read it",
    ),
    Benchmark(
        name="gpqa",
        title="GPQA (diamond)",
        use="evaluation",
        asks="graduate-level multiple choice in physics, chemistry, biology",
        reward="multiple_choice",
        convert=conversions.gpqa,
        repository="Idavidrein/gpqa",
        configs=("gpqa_diamond",),
        splits={"test": "train"},
        sizes={"test": 198},
        columns=(
            "Question",
            "Correct Answer",
            "Incorrect Answer 1",
            "Incorrect Answer 2",
            "Incorrect Answer 3",
            "High-level domain",
        ),
        licence="CC BY 4.0",
        gated=True,
        republish="no",
        instruction=_LETTER,
        paper="AgentFlow: 100 at random; its file has 300 (so more than diamond's 198), its script takes the first 100",
        notes="the options' order is drawn from the question; families are domains; its authors ask not to put "
        "questions where they could be trained on",
    ),
    Benchmark(
        name="medqa",
        title="MedQA (USMLE, four options)",
        use="evaluation",
        asks="multiple choice of the US medical licensing examination",
        reward="multiple_choice",
        convert=conversions.medqa,
        repository="GBaker/MedQA-USMLE-4-options",
        splits={"train": "train", "test": "test"},
        sizes={"train": 10_178, "test": 1_273},
        columns=("question", "options", "answer_idx", "answer"),
        licence="MIT",
        copy_licence="CC BY 4.0",
        instruction=_LETTER,
        paper="AgentFlow: its file has 300, of which its script takes the first 100",
    ),
    Benchmark(
        name="webwalkerqa",
        title="WebWalkerQA",
        use="evaluation",
        asks="questions whose answer lies deep in a web site, Chinese and English",
        reward="f1",
        convert=conversions.web_walker,
        repository="callanwu/WebWalkerQA",
        splits={"test": "main"},
        sizes={"test": 680},
        columns=("question", "answer", "root_url", "info"),
        licence="Apache-2.0",
        paper="Training-Free GRPO evaluates on it, and learns from 100 tasks of AFM's web set",
        notes="answers are sentences: its authors have a model judge them, and F1 is only a rough stand-in; the site "
        "to begin at is in the task's metadata, not in its question",
    ),
    Benchmark(
        name="simpleqa",
        title="SimpleQA",
        use="evaluation",
        asks="short questions of fact that were hard for GPT-4",
        reward="exact_match",
        convert=conversions.simple_question,
        repository="basicv8vc/SimpleQA",
        splits={"test": "test"},
        sizes={"test": 4_326},
        columns=("problem", "answer", "metadata"),
        licence="MIT",
        notes="its authors have a model judge answers; families are topics",
        unverified="the split's name",
    ),
)

MATHEMATICS = (
    Benchmark(
        **_CONTEST,
        name="aime24",
        title="AIME 2024",
        asks="30 problems with answers from 0 to 999",
        repository="Maxwell-Jia/AIME_2024",
        copy_licence="MIT",
        splits={"test": "train"},
        sizes={"test": 30},
        columns=("Problem", "Answer"),
        paper="AgentFlow: all 30; Training-Free GRPO: mean of 32 runs",
    ),
    Benchmark(
        **_CONTEST,
        name="aime25",
        title="AIME 2025",
        asks="30 problems with answers from 0 to 999",
        repository="math-ai/aime25",
        copy_licence="Apache-2.0",
        splits={"test": "test"},
        sizes={"test": 30},
        columns=("problem", "answer"),
        paper="Training-Free GRPO: mean of 32 runs",
    ),
    Benchmark(
        **_CONTEST,
        name="amc23",
        title="AMC 2023",
        asks="40 problems of AMC 12",
        repository="math-ai/amc23",
        copy_licence="none stated",
        splits={"test": "test"},
        sizes={"test": 40},
        columns=("problem", "question", "answer"),
        paper="AgentFlow: all 40",
        unverified="which of `problem` and `question` the Hub's copy has (either is read)",
    ),
    Benchmark(
        **_CONTEST,
        name="amc-artist",
        title="AMC 12 of 2022 and 2023 (ARTIST's AMC)",
        asks="83 problems of AMC 12",
        repository="AI-MO/aimo-validation-amc",
        splits={"test": "train"},
        sizes={"test": 83},
        columns=("problem", "answer"),
        paper="ARTIST: all 83, pass@1",
        unverified="that ARTIST's 83 are these; the copy's licence",
    ),
    Benchmark(
        **_CONTEST,
        name="aime-artist",
        title="AIME of 2022 to 2024 (ARTIST's AIME)",
        asks="90 problems with answers from 0 to 999",
        repository="AI-MO/aimo-validation-aime",
        splits={"test": "train"},
        sizes={"test": 90},
        columns=("problem", "answer"),
        paper="ARTIST: all 90, pass@1",
        unverified="that ARTIST's 90 are these; the copy's licence",
    ),
    Benchmark(
        name="math500",
        title="MATH-500",
        use="evaluation",
        asks="500 problems of MATH",
        reward="math",
        convert=conversions.mathematics,
        repository="HuggingFaceH4/MATH-500",
        splits={"test": "test"},
        sizes={"test": 500},
        columns=("problem", "answer", "solution", "subject", "level"),
        licence="MIT",
        copy_licence="none stated",
        paper="ARTIST: all 500, pass@1",
        notes="families are subjects",
    ),
    Benchmark(
        name="olympiadbench",
        title="OlympiadBench (mathematics, English, text only)",
        use="evaluation",
        asks="olympiad problems with a final answer",
        reward="math",
        convert=conversions.mathematics,
        repository="Hothan/OlympiadBench",
        configs=("OE_TO_maths_en_COMP",),
        splits={"test": "train"},
        sizes={"test": 674},
        columns=("question", "final_answer", "subject", "unit"),
        licence="Apache-2.0",
        paper="ARTIST: Olympiad, pass@1",
        notes="several values of one answer are joined by commas",
        unverified="that ARTIST's set is this one",
    ),
    Benchmark(
        name="gameof24",
        title="Game of 24",
        use="evaluation",
        asks="make 24 out of four numbers",
        reward="game24",
        columns=("pid", "query", "question", "answer"),
        paper="AgentFlow: its file has 300, of which its script takes the first 100",
        splits={"train": "train", "validation": "validation", "test": "test"},
        sizes={"train": 912, "validation": 177, "test": 273},
        world=lambda: game24.GameOf24(game24.Config()),
        notes="without a file, all 1,362 hands of 1 to 13 that can be solved, found here and drawn apart into splits "
        '(the same as type = "game24"); a file is one of AgentFlow\'s form',
    ),
)

TRAINING = (
    Benchmark(
        name="search-r1",
        title="Search-R1's training set: NQ and HotpotQA",
        use="training",
        asks="questions to be answered by searching",
        reward="exact_match",
        convert=conversions.open_question,
        repository=_FLASHRAG,
        configs=("nq", "hotpotqa"),
        splits={"train": "train", "validation": "dev"},
        sizes={"train": 169_615, "validation": 16_162},
        columns=("question", "golden_answers"),
        licence="CC BY-SA 4.0",
        paper="AgentFlow trains on it, mixed with DeepMath-103K; its released script takes NQ alone",
        notes="families are nq and hotpotqa; every accepted answer counts",
    ),
    Benchmark(
        name="deepmath-103k",
        title="DeepMath-103K",
        use="training",
        asks="hard problems with a final answer",
        reward="math",
        convert=conversions.mathematics,
        repository="zwhe99/DeepMath-103K",
        splits={"train": "train"},
        sizes={"train": 103_022},
        columns=("question", "final_answer", "difficulty"),
        licence="MIT",
        paper="AgentFlow trains on it, mixed with Search-R1's",
    ),
    Benchmark(
        name="numinamath",
        title="NuminaMath-CoT",
        use="training",
        asks="problems from school to olympiad",
        reward="math",
        convert=conversions.mathematics,
        repository="AI-MO/NuminaMath-CoT",
        splits={"train": "train", "test": "test"},
        sizes={"train": 859_494, "test": 100},
        columns=("problem", "solution"),
        licence="Apache-2.0",
        paper="ARTIST trains on 20,000 of it",
        notes="the answer is the solution's last box; problems without one are left out and counted",
        unverified="which 20,000 ARTIST took, and how many rows have a box",
    ),
    Benchmark(
        name="dapo-math-17k",
        title="DAPO-Math-17k",
        use="training",
        asks="contest problems with whole numbers as answers",
        reward="math",
        convert=conversions.dapo,
        repository="BytedTsinghua-SIA/DAPO-Math-17k",
        splits={"train": "train"},
        sizes={"train": 17_398},
        columns=("prompt", "reward_model"),
        licence="Apache-2.0",
        merge=True,
        paper="Training-Free GRPO learns from 100 of it",
        notes="its 1.79 million rows repeat about 17,000 questions; repeats are left out and counted",
        unverified="the exact number of different questions",
    ),
)

WORLDS = (
    Benchmark(
        name="gazetteer",
        title="The gazetteer, midstream's offline world",
        use="world",
        asks="look-ups and sums about places that exist nowhere, without end",
        reward="exact_match",
        world=lambda: gazetteer.Gazetteer(gazetteer.Config()),
        notes='the same as type = "gazetteer" with its defaults; families are kinds of question',
    ),
)

BENCHMARKS = {one.name: one for one in (*QUESTIONS, *MATHEMATICS, *TRAINING, *WORLDS)}


def make(config: Config) -> TaskSource:
    """The source of a benchmark's tasks; nothing is read before tasks are asked for.

    Raises:
        RecipeError: there is no such benchmark, or it has no use for a setting.
    """
    benchmark = find(config.name, BENCHMARKS)
    world = benchmark.world if config.file is None else None
    useless = {
        "file": benchmark.use == "world",
        "revision": bool(benchmark.world or config.file),
        "instruction": world is not None,
    }
    if names := [name for name, refused in useless.items() if refused and getattr(config, name) is not None]:
        raise RecipeError(
            f"benchmark {benchmark.name} has no use for {' and '.join(names)}",
            cause="its questions are made here" if benchmark.world else "a file has no revisions",
            fix=f"leave out {' and '.join(names)}",
        )
    return world() if world else BenchmarkTasks(benchmark, config)
