"""The command line: `midstream COMMAND`, one of demo, train, resume, eval, compare, show, solve, tools, doctor ..."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from midstream.core.errors import MidstreamError, UsageError
from midstream.core.version import __version__

EXAMPLES = """examples:
  midstream demo                       train offline in minutes, see it improve
  midstream train flow-grpo-tiny --set training.steps=50
  midstream resume runs/demo           after Ctrl-C, a kill or a power cut
  midstream eval runs/demo             evaluate the newest checkpoint
  midstream eval agentflow-prompted --model gpt-4o-mini --benchmark bamboogle
  midstream solve "What is 45 plus 17 ?" --planner runs/demo
  midstream solve "..." --base-url http://localhost:11434/v1 --model qwen2.5:7b
  midstream doctor                     what works on this machine?
  midstream doctor --provider ollama --model qwen2.5:7b
  midstream tools                      what agents can call, and what each needs
  midstream tools python "105 + 7"     call one by hand
  midstream benchmarks gpqa            what it asks, where its questions are
  midstream index build docs.jsonl     search in documents of your own
  midstream show runs/demo             numbers; add an id for one trajectory
  midstream compare runs/a runs/b      is b better than a, and how sure is that?
  midstream library show runs/p        the lessons an agent has learned
  midstream study controls --seeds 3   a recipe beside its controls"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    options = _parsed(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without UTF-8 must not end a run
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _check_encoding(sys.argv[1:] if arguments is None else arguments)
        if options.command == "library":
            from midstream.cli.library import library

            return library(options)
        if options.command == "study":
            from midstream.study import run_study

            return run_study(options)
        if options.command == "compare":
            from midstream.cli.compare import run_compare

            return run_compare(options)
        if options.command == "solve":
            from midstream.cli.solve import solve

            return solve(options)
        if options.command == "doctor":
            from midstream.doctor.doctor import diagnose

            return diagnose(options)
        if options.command == "tools":
            from midstream.cli.tools import tools

            return tools(options)
        if options.command == "index":
            from midstream.cli.index import build

            return build(options)
        if options.command == "benchmarks":
            from midstream.cli.benchmarks import benchmarks

            return benchmarks(options)
        if options.command in ("eval", "resume"):
            from midstream.cli import eval as eval_command

            return eval_command.resume(options) if options.command == "resume" else eval_command.evaluate(options)
        from midstream.cli import commands

        return getattr(commands, options.command)(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MidstreamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 0
    except OSError as error:
        print(f"error: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        print("  cause: the file or device could not be read or written", file=sys.stderr)
        print("  fix: see to its path, permissions and free space", file=sys.stderr)
        return 1


def _check_encoding(arguments: Sequence[str]) -> None:
    """Refuse what is no UTF-8: a run directory holds the command line, names and paths as JSON and TOML."""
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"an argument is not valid UTF-8: {word!r}",
                cause="the terminal, a variable or the name of a file uses another encoding",
                fix="type it again, convert it with iconv, or rename the file",
            ) from error


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; a tool's arguments may stand after them too, which argparse itself does not see to."""
    root = parser()
    options, left = root.parse_known_args(arguments)
    if options.command == "tools" and not any(word.startswith("-") for word in left):
        options.arguments, left = [*options.arguments, *left], []
    if left:
        root.error(f"unrecognized arguments: {' '.join(left)}")
    return options


def parser() -> argparse.ArgumentParser:
    """The argument parser."""
    root = argparse.ArgumentParser(
        prog="midstream",
        description="Agents that plan and call tools, made better in the flow by their own outcomes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"midstream {__version__}")
    root.set_defaults(record=None, replay=None, library=None)  # of commands without these options
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a tiny planner offline, show that it became better")
    _recipe_options(demo)
    _run_options(demo)
    demo.add_argument("--no-resume", action="store_true", help="refuse to go on with a demo that was interrupted")

    train = commands.add_parser("train", help="train a recipe")
    train.add_argument("recipe", help="name of a recipe that comes with midstream, or a .toml file")
    _recipe_options(train)
    _run_options(train)
    _library_option(train)
    _recording_options(train)

    resume = commands.add_parser("resume", help="go on with an interrupted run or evaluation")
    resume.add_argument("run", help="run directory")
    resume.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="practice.budget.LIMIT=VALUE",
        help="raise a limit of a practice run; one that a limit ended goes on",
    )
    _retry_option(resume)
    _recording_options(resume)
    _output_options(resume)

    evaluate = commands.add_parser("eval", help="evaluate a run's newest checkpoint or library, or a recipe's agent")
    evaluate.add_argument("target", help="run directory or recipe")
    evaluate.add_argument(
        "--benchmark",
        action="append",
        default=[],
        metavar="NAME[=FILE]",
        help="on this one (again for several)",
    )
    evaluate.add_argument("--tasks", action="append", default=[], metavar="FILE", help="on questions of your own")
    evaluate.add_argument("--count", type=int, metavar="N", help="N tasks of each set, drawn at random")
    evaluate.add_argument("--trials", type=int, metavar="K", help="try each task K times")
    evaluate.add_argument("--reward", metavar="TYPE", help="what scores the answers, e.g. exact_match, math, judge")
    evaluate.add_argument("--temperature", type=float, default=None, metavar="T", help="the planner's temperature")
    _server_options(evaluate)
    evaluate.add_argument("--tools", metavar="A,B", help="exactly these tools; a wrong name lists them")
    _library_option(evaluate)
    _retry_option(evaluate)
    _unsafe_option(evaluate)
    _recording_options(evaluate)
    _recipe_options(evaluate)
    _run_options(evaluate)

    solve = commands.add_parser("solve", help="answer one question, turn by turn")
    solve.add_argument("question", help="in quotes")
    source = solve.add_mutually_exclusive_group()
    source.add_argument(
        "--planner", metavar="RUN", help="the planner, or agent, of this run; --model is then for the other modules"
    )
    source.add_argument("--recipe", default=None, help="the agent of this recipe (default: agentflow-prompted)")
    _server_options(solve)
    solve.add_argument("--tools", metavar="A,B", help="exactly these tools; a wrong name lists them")
    _library_option(solve)
    solve.add_argument(
        "--temperature", type=float, default=None, metavar="T", help="the planner's temperature (with --planner: 0)"
    )
    _unsafe_option(solve)
    _recording_options(solve)
    _recipe_options(solve)
    _output_options(solve)

    doctor = commands.add_parser("doctor", help="what works on this machine? can this model play the four roles?")
    doctor.add_argument("--recipe", default=None, help="the modules of this recipe (default: agentflow-prompted)")
    _server_options(doctor)
    doctor.add_argument("--roles", action="store_true", help="examine the recipe's own model where none is named")
    _recipe_options(doctor)
    _output_options(doctor)

    tools = commands.add_parser("tools", help="the tools there are; one in full; one called by hand")
    tools.add_argument("name", nargs="?", help="a tool, or a function of yours: my_tools.py:word_count")
    tools.add_argument(
        "arguments", nargs="*", help="""call it: '{"query": "..."}', or query=..., or "..." where it wants one"""
    )
    tools.add_argument("--recipe", default=None, help="with the tools and settings of this recipe")
    _server_options(tools)
    _unsafe_option(tools)
    _recording_options(tools)
    _set_option(tools)
    _output_options(tools)

    benchmarks = commands.add_parser("benchmarks", help="the benchmarks and training sets there are; one in full")
    benchmarks.add_argument("name", nargs="?", help="a benchmark")
    benchmarks.add_argument(
        "--file", metavar="PATH", help="read its questions from here; without a name: questions of your own"
    )
    _output_options(benchmarks)

    index = commands.add_parser("index", help="search in documents of your own").add_subparsers(
        dest="action", required=True, metavar="build"
    )
    build = index.add_parser("build", help="index documents for the tool local_search")
    build.add_argument("file", help="documents, one JSON object a line: id, text, title if any; - reads standard input")
    build.add_argument("--out", metavar="FILE.db", help="the index (default: beside the documents, as .db)")
    for name in ("id", "text", "title"):
        build.add_argument(f"--{name}-field", default=name, metavar="NAME", help=f"where a line holds the {name}")
    build.add_argument(
        "--passage-characters", type=int, metavar="N", help="split longer texts into passages of N characters"
    )
    _output_options(build)

    show = commands.add_parser("show", help="numbers of a run, or one of its trajectories turn by turn")
    show.add_argument("run", help="run directory")
    show.add_argument("trajectory", nargs="?", help="id of a trajectory, or its beginning")
    show.add_argument("--tasks", action="store_true", help="list the evaluated tasks: score, answer, gold answer")
    show.add_argument("--wrong", action="store_true", help="list those that are not right")
    _output_options(show)

    compare = commands.add_parser("compare", help="which of several evaluations is better, by how much, how surely")
    compare.add_argument("first", help="evaluation or run directory; RUN@STEP for a step other than the last evaluated")
    compare.add_argument("others", nargs="+", metavar="other", help="each is compared with the first")
    compare.add_argument("--tasks", action="store_true", help="list the tasks that differ, with the answers")
    _output_options(compare)

    _library_command(commands)

    study = commands.add_parser(
        "study", help="runs over several seeds, compared: controls, planner, agents, library, gate"
    )
    study.add_argument(
        "name",
        choices=["controls", "planner", "agents", "library", "gate"],
        help="the tiny recipe beside its controls; a planner, or a library of lessons, as the papers analyse them; "
        "what the gate keeps and costs",
    )
    study.add_argument("--recipe", default=None, help="whose (default: a recipe that comes with midstream)")
    study.add_argument("--seeds", type=int, default=3, help="training seeds of each recipe (default 3)")
    study.add_argument(
        "--out", default=None, help="directory (default: runs/study-NAME); what is in it is not repeated"
    )
    study.add_argument("--only", nargs="+", default=None, metavar="NAME", help="some of the controls, or analyses")
    _set_option(study)
    _output_options(study)
    return root


def _library_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`midstream library`: what can be done with the lessons that an agent has learned."""
    root = commands.add_parser("library", help="what an agent has learned: look at its lessons, edit, test, share them")
    actions = root.add_subparsers(dest="action", required=True, metavar="ACTION")
    where = "a practice run, one version of its library (RUN@VERSION), or a file"
    changed = "a practice run, or a .json file"

    show = actions.add_parser("show", help="every lesson: where it came from, what it did")
    show.add_argument("named", metavar="LIBRARY", help=where)
    show.add_argument("--markdown", action="store_true", help="as it is edited")
    _output_options(show)

    versions = actions.add_parser("versions", help="every version of a run's library, and what made it")
    versions.add_argument("run", metavar="RUN", help="practice run")
    _output_options(versions)

    diff = actions.add_parser("diff", help="what one library has and another has not")
    diff.add_argument("first", metavar="LIBRARY", help=where)
    diff.add_argument("second", metavar="OTHER", help="as the first, e.g. runs/p@2 runs/p@5")
    _output_options(diff)

    rollback = actions.add_parser("rollback", help="go back to a version; those in between stay on record")
    rollback.add_argument("run", metavar="RUN", help="practice run")
    rollback.add_argument("number", type=int, metavar="VERSION", help="its number, as `versions` lists them")
    _output_options(rollback)

    edit = actions.add_parser("edit", help="change lessons: in an editor ($VISUAL, $EDITOR), or with these options")
    edit.add_argument("named", metavar="LIBRARY", help=changed)
    edit.add_argument("--add", action="append", default=[], metavar="TEXT", help="a new lesson")
    edit.add_argument("--module", default=None, metavar="NAME", help="whose prompt --add or --modify is for")
    edit.add_argument("--modify", nargs=2, action="append", default=[], metavar=("ID", "TEXT"), help="another text")
    edit.add_argument("--delete", action="append", default=[], metavar="ID", help="its id is never given again")
    edit.add_argument("--pin", action="append", default=[], metavar="ID", help="learning keeps it as it is")
    edit.add_argument("--veto", action="append", default=[], metavar="ID", help="never shown, and never learned again")
    edit.add_argument("--release", action="append", default=[], metavar="ID", help="neither pinned nor vetoed")
    edit.add_argument("--from", dest="source", type=Path, metavar="FILE", help="as this file says (export made it)")
    _output_options(edit)

    merge = actions.add_parser("merge", help="one library out of two")
    merge.add_argument("named", metavar="LIBRARY", help=where)
    merge.add_argument("other", metavar="OTHER", help=where)
    merge.add_argument("--out", type=Path, metavar="FILE", help=".json or .md (default: into LIBRARY itself)")
    _output_options(merge)

    export = actions.add_parser("export", help="write a library to a file")
    export.add_argument("named", metavar="LIBRARY", help=where)
    export.add_argument("out", type=Path, metavar="FILE", help=".json: all of it; .md: to read and edit")
    _output_options(export)

    validate = actions.add_parser("validate", help="does it help this agent? measured against none, lesson by lesson")
    validate.add_argument("named", metavar="LIBRARY", help=changed)
    validate.add_argument("--recipe", default=None, help="the agent of this recipe (default: the run's own)")
    _server_options(validate)
    validate.add_argument("--tools", metavar="A,B", help="exactly these tools; a wrong name lists them")
    _unsafe_option(validate)
    _recording_options(validate)
    _recipe_options(validate)
    _output_options(validate)


def _library_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--library", metavar="LIBRARY", help="lessons in the prompts: a practice run, RUN@VERSION, or a file"
    )


def _server_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", metavar="NAME", help="a model, by its name on the server")
    command.add_argument("--base-url", metavar="URL", help="the server, e.g. http://localhost:11434/v1 (Ollama)")
    command.add_argument(
        "--provider", metavar="NAME", help="the server by name, e.g. ollama, vllm; a wrong name lists them"
    )


def _retry_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--retry-errors", action="store_true", help="of an evaluation: run again what ended in an infrastructure error"
    )


def _recipe_options(command: argparse.ArgumentParser) -> None:
    _set_option(command)
    command.add_argument("--seed", type=int, default=None, help="the run seed")
    command.add_argument("--dry-run", action="store_true", help="validate and print the resolved recipe, start nothing")


def _set_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="A.B=C", help="change one setting"
    )


def _unsafe_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--unsafe", action="store_true", help="run code that a model writes without a sandbox")


def _recording_options(command: argparse.ArgumentParser) -> None:
    kept = command.add_mutually_exclusive_group()
    kept.add_argument("--record", type=_directory, metavar="DIR", help="keep what tools answer, and answer from there")
    kept.add_argument("--replay", type=_directory, metavar="DIR", help="answer from there alone; no tool is called")


def _directory(text: str) -> Path:
    if not text.strip():  # a variable that is not set: not the directory we are in
        raise argparse.ArgumentTypeError(f"no directory is named: {text!r}")
    return Path(text)


def _run_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", default=None, help="run directory (default: a new one under runs/)")
    _output_options(command)


def _output_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print results as JSON on standard output")
    command.add_argument("--quiet", action="store_true", help="no progress")


if __name__ == "__main__":
    sys.exit(main())
