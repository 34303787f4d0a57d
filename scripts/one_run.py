"""Measure one Flow-GRPO run on a file of questions and a model of one's own: `python scripts/one_run.py`.

Prints as JSON the share of the lines of src/midstream that lie in files which the run loads (`share`), and the climbs
of the walk from recipe to objects (`climbs`): pairs of files of which the first calls into a higher layer of
.importlinter, where the second lies. The model is a random one, made here; it runs on a CPU in seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "midstream"
CHANGES = (
    "evaluation.sets=[]",
    "evaluation.validation={name='validation',split='test',per_family=2}",
    "training={steps=1,tasks_per_step=2,group_size=2,family_sampling='uniform'}",
    "agent.max_turns=1",
)


class Climbs:
    """Collects calls from a file to one of a higher layer, while it is the profiler of this thread."""

    def __init__(self) -> None:
        contract = ConfigParser()
        contract.read(REPOSITORY / ".importlinter")
        layers = contract["importlinter:contract:directions"]["layers"].strip().splitlines()
        self._floors = {room.strip(): -at for at, layer in enumerate(layers) for room in layer.split("|")}
        self.found: set[tuple[str, str]] = set()

    @cache  # noqa: B019 - one object, for seconds
    def _place(self, file: str) -> tuple[str, int] | None:
        """The file in src/midstream and its floor; None for others."""
        if not file.startswith(str(SOURCE)):
            return None
        path = Path(file).relative_to(SOURCE)
        return str(path), self._floors.get(path.parts[0].removesuffix(".py"), 0)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call that climbs; `sys.setprofile` calls this."""
        if event != "call" or frame.f_code.co_name == "<module>" or frame.f_back is None:
            return
        caller, called = self._place(frame.f_back.f_code.co_filename), self._place(frame.f_code.co_filename)
        if caller and called and called[1] > caller[1]:
            self.found.add((caller[0], called[0]))


def main() -> None:
    """Build, then train."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from support.served_model import save_model

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        save_model(root / "model", positions=4096)
        rows = [json.dumps({"question": f"How much is {n} + {n}?", "answer": str(2 * n)}) for n in range(40)]
        (root / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
        tasks = f"tasks={{type='file',path='{root}/questions.jsonl',splits={{train=0.8,test=0.2}}}}"
        climbs = Climbs()
        before = set(sys.modules)
        from midstream.recipe.build import Build
        from midstream.recipe.overrides import changed_recipe
        from midstream.recipe.sessions import parts_of

        sys.setprofile(climbs)
        recipe = changed_recipe("agentflow-small", model=f"local/{root}/model", overrides=[tasks, *CHANGES])
        with Build(recipe) as build:
            parts_of(build)
        sys.setprofile(None)
        from midstream import api

        api.train(recipe, out=root / "run")
    files = {str(getattr(module, "__file__", None)) for name, module in sys.modules.items() if name not in before}
    sizes = {str(path): path.read_text(encoding="utf-8").count("\n") for path in SOURCE.rglob("*.py")}
    share = sum(size for path, size in sizes.items() if path in files) / sum(sizes.values())
    print(json.dumps({"share": share, "climbs": sorted(climbs.found)}))


if __name__ == "__main__":
    main()
