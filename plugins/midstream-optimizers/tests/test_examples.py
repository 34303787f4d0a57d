"""Few-shot examples: their form in real prompts, which are offered, and how a subset is chosen."""

from __future__ import annotations

import pytest

from midstream.agents.interleaved import render_opening
from midstream.agents.prompted import PlannerConfig, PromptedPlanner
from midstream.core.agent import ModuleContext
from midstream.core.stream import answer_of, blocks, stream_of
from midstream.core.stream_template import load_template
from midstream.core.trajectory import Action, Call, Observation, Score, Trajectory, Turn
from midstream.lessons.lesson_set import Lesson, LessonSet
from midstream.lessons.similarity import leak_guard
from midstream_optimizers.examples import Examples, ExamplesConfig, example
from midstream_worlds.scripted_engine import ScriptedEngine
from readers import TASKS, Reader, learner, propose
from support.lesson_sets import marked

PLACE = "planner.examples"


# --- the form ---------------------------------------------------------------------------------------------------------


def stream(call, output, answer, question="What is 12 * 4 - 31?"):
    """A run of one stream: a call, its output, and the reply that ends it."""
    return Trajectory(
        id="a#0",
        task_id="a",
        question=question,
        turns=(Turn(index=1, calls=(Call(role="policy", completion=call),), appended=output),),
        closing_calls=(Call(role="policy", completion=answer),),
        answer="17",
        reward=Score(value=1.0),
    )


SMALL = stream("<python>\nprint(12 * 4 - 31)\n</python>", "\n<output>\n17\n</output>\n", "<answer>17</answer>")


def test_an_example_of_a_stream_reads_like_the_templates_own():
    template = load_template("small")
    text = example(SMALL, "policy", template)
    assert text == (
        "Question: What is 12 * 4 - 31?\n<python>\nprint(12 * 4 - 31)\n</python>\n<output>\n17\n</output>\n"
        "<answer>17</answer>"
    )
    own = "Question: What is (3 * 60 + 12) * 60?\n<python>\nprint((3 * 60 + 12) * 60)\n</python>\n<output>\n11520\n"
    assert own in template.user
    [prompt] = render_opening(template, {}, {"policy.examples": text}, "What is 1 + 1?")
    assert prompt.content.endswith(f"<answer>17</answer>\n\n{text}\n\nQuestion: What is 1 + 1?\n")


def test_with_learned_instructions_the_form_is_theirs():
    text = example(SMALL, "policy", load_template("small"), "Compute.\n\n{{lessons}}Q: {{query}}")
    assert text.startswith("Q: What is 12 * 4 - 31?\n<python>")


@pytest.mark.parametrize(
    "name", ["artist-math", "retool", "search-r1", "text", "tiny", "torl", "direct", "native", "small"]
)
def test_every_templates_prompt_shows_an_example_that_it_can_read_again(name):
    template = load_template(name)
    call, output = template.call, template.output
    tool = template.tool or "python"
    body = '{"name": "python", "arguments": {}}' if template.body == "json" else "print(17)"
    said = call.open.replace("{tool}", tool) + body + call.close.replace("{tool}", tool)
    answer = "\\boxed{17}" if template.boxed else "17"
    answer = f"{template.answer.open}{answer}{template.answer.close}" if template.answer else answer
    appended = template.layout.format(open=output.open, text="17", close=output.close)
    made = stream(said, appended, answer, question="How much <|im_end|> is it?")
    text = example(made, "policy", template)
    assert "How much \\u003c|im_end|> is it?" in text
    assert text.count("17") >= 2
    if template.shows_lessons:
        prompt = "\n".join(message.content for message in render_opening(template, {}, {"policy.examples": text}, "Q?"))
        assert text in prompt
        assert prompt.index(text) < prompt.rindex("Q?")
    kinds = [block.kind for block in blocks(stream_of(made), template)]
    assert kinds.index("call") < kinds.index("output")
    assert answer_of(stream_of(made), template) == "17" or template.answer is None


TURNS = Trajectory(
    id="a#0",
    task_id="a",
    question="How high is Amberbank?",
    turns=(
        Turn(
            index=1,
            action=Action(sub_goal="find the height", tool="search"),
            calls=(
                Call(role="planner", completion="<think>hm</think>Justification: it is asked for\nTool Name: search"),
                Call(role="verifier", completion="no JSON"),
                Call(role="verifier", completion='{"result_valid": true}'),
            ),
            observation=Observation(status="ok", text="height 105 " + "x" * 600),
        ),
    ),
    closing_calls=(Call(role="generator", completion="It is 105."),),
    answer="105",
    reward=Score(value=1.0),
)


def test_an_example_of_a_module_has_its_replies_and_the_results():
    text = example(TURNS, "planner")
    assert text.startswith(
        "Query: How high is Amberbank?\nTurn 1: find the height (search)\nJustification: it is asked for\n"
        "Tool Name: search\nResult: height 105 x"
    )
    assert text.endswith("[cut: 611 characters, of which the first 400 are shown]\nAnswer: 105")
    assert '\n{"result_valid": true}\nResult:' in example(TURNS, "verifier")
    assert "no JSON" not in example(TURNS, "verifier")
    assert example(TURNS, "generator").endswith("\nIt is 105.")
    assert example(TURNS, "executor") == ""


def test_the_planners_prompt_shows_an_example():
    text = example(TURNS, "planner")
    context = ModuleContext(engine=ScriptedEngine([]), examples=text)
    form = PromptedPlanner(PlannerConfig()).prompt_form((), context, lambda name: f"[{name}]")
    assert f"# Examples of good runs\n\n{text}\n\n# Tools" in form[0].content


# --- the choice -------------------------------------------------------------------------------------------------------


def words(**settings):
    """The learner whose agent solves a task once a text of its prompt has the task's family: an example has."""
    return learner(Examples(ExamplesConfig(**settings)), agent=Even(), modules=[PLACE])


class Even(Reader):
    """Solves the questions on alpha, and all others once it has seen an example."""

    async def run(self, task, context):
        made = await super().run(task, context)
        return made.model_copy(update={"answer": "right" if "alpha" in task.question or context.lessons else "?"})


def test_examples_are_chosen_on_rollouts():
    found = propose(words(), LessonSet())
    assert {operation.kind for operation in found.operations} == {"add"}
    assert 1 <= len(found.operations) <= 3
    first = found.operations[0]
    assert first.text.startswith("Query: What is alpha item")
    assert "I look t" in first.text
    assert first.module == PLACE
    assert first.origin.why == "examples: the best of 3 subsets on the batch"
    assert first.origin.tasks[0] in {"t0", "t2", "t4"}
    assert first.origin.trajectories[0].startswith(first.origin.tasks[0])


def test_the_same_seed_proposes_the_same():
    assert propose(words(), LessonSet()) == propose(words(), LessonSet())


def test_examples_that_earn_no_more_are_not_proposed():
    made = learner(Examples(ExamplesConfig()), agent=Always(), modules=[PLACE])
    assert propose(made, LessonSet()).operations == []


class Always(Reader):
    async def run(self, task, context):
        return (await super().run(task, context)).model_copy(update={"answer": "right"})


def test_an_example_that_holds_an_answer_of_the_gates_tasks_is_refused():
    secret = TASKS[0].model_copy(update={"id": "v", "question": "What is this ?", "answer": "I look t0 up"})
    found = propose(words(most=1), LessonSet(), guards=[leak_guard([secret])])
    assert [outcome.refused for outcome in found.left_out] == ["it holds the answer of task 'v'"]
    assert all("t0" not in operation.text for operation in found.operations)


def test_old_examples_make_room_for_better_ones_but_not_those_of_a_person():
    class Newest(Reader):
        """Solves alpha, and everything without the old example."""

        async def run(self, task, context):
            made = await super().run(task, context)
            right = "alpha" in task.question or "OLD" not in context.lessons.get(PLACE, "OLD")
            return made.model_copy(update={"answer": "right" if right else "?"})

    old = LessonSet(lessons=(Lesson(id="L1", module=PLACE, text="OLD example"),))
    made = learner(Examples(ExamplesConfig(most=1)), agent=Newest(), modules=[PLACE])
    assert [operation.kind for operation in propose(made, old).operations] == ["delete", "add"]
    assert propose(made, marked(old, "L1", "pinned")).operations == []


def test_long_examples_and_weak_rollouts_are_left_out():
    assert propose(words(example_tokens=5), LessonSet()).operations == []
    assert propose(learner(Examples(ExamplesConfig()), modules=[PLACE]), LessonSet()).operations == []
