"""A made-up domain in the layout of a clone of tau-bench: its packages, too, fail to import as the real ones do."""

from __future__ import annotations

import json
from pathlib import Path

_NO_LITELLM = "import a_package_that_is_not_installed\n"

_FILES = {
    "__init__.py": _NO_LITELLM,
    "types.py": """
from typing import Any, Dict, List
from pydantic import BaseModel

class Action(BaseModel):
    name: str
    kwargs: Dict[str, Any]

class Task(BaseModel):
    user_id: str
    actions: List[Action]
    instruction: str
    outputs: List[str]
""",
    "envs/__init__.py": _NO_LITELLM,
    "envs/tool.py": "class Tool:\n    pass\n",
    "envs/airline/__init__.py": _NO_LITELLM,
    "envs/airline/wiki.md": "Be kind. Book only what is asked for.",
    "envs/airline/wiki.py": """
from pathlib import Path
WIKI = (Path(__file__).parent / "wiki.md").read_text()
""",
    "envs/airline/data/__init__.py": """
import json, os
def load_data():
    with open(os.path.join(os.path.dirname(__file__), "seats.json")) as f:
        seats = json.load(f)
    return {"seats": seats, "notes": {}}
""",
    "envs/airline/data/seats.json": json.dumps({"1A": None, "1B": "bo"}),
    "envs/airline/tools/__init__.py": """
from .book import Book
from .calculate import Calculate
from .transfer import Transfer
ALL_TOOLS = [Book, Calculate, Transfer]
""",
    "envs/airline/tools/book.py": """
from tau_bench.envs.tool import Tool
class Book(Tool):
    @staticmethod
    def invoke(data, seat, names):
        if data["seats"][seat] is not None:
            return "Error: taken"
        data["seats"][seat] = names
        return "booked"
    @staticmethod
    def get_info():
        names = {"type": "array", "items": {"type": "string"}}
        parameters = {"type": "object", "properties": {"seat": {"type": "string"}, "names": names},
                      "required": ["seat", "names"]}
        return {"type": "function", "function": {"name": "book", "description": "Book a seat.",
                                                 "parameters": parameters}}
""",
    "envs/airline/tools/calculate.py": """
from tau_bench.envs.tool import Tool
class Calculate(Tool):
    @staticmethod
    def invoke(data, expression):
        return str(eval(expression))
    @staticmethod
    def get_info():
        parameters = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
        return {"type": "function", "function": {"name": "calculate", "description": "Sums.", "parameters": parameters}}
""",
    "envs/airline/tools/transfer.py": """
from tau_bench.envs.tool import Tool
class Transfer(Tool):
    @staticmethod
    def invoke(data, summary):
        return "Transfer successful"
    @staticmethod
    def get_info():
        parameters = {"type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]}
        return {"type": "function", "function": {"name": "transfer_to_human_agents", "description": "Hand over.",
                                                 "parameters": parameters}}
""",
    "envs/airline/tasks_test.py": """
from tau_bench.types import Action, Task
TASKS = [
    Task(annotator="0", user_id="ann", instruction="You are Ann and want seat 1A. Ask what it costs.",
         actions=[Action(name="book", kwargs={"seat": "1A", "names": ["ann"]})], outputs=["1200"]),
    Task(annotator="0", user_id="bo", instruction="You are Bo and want seat 1B a second time.", actions=[], outputs=[]),
    Task(annotator="0", user_id="cy", instruction="You are Cy and want a person.",
         actions=[Action(name="transfer_to_human_agents", kwargs={"summary": "Cy"})], outputs=[]),
]
""",
}


def write_clone(directory: Path) -> Path:
    """Write the clone, whose only domain is called "airline", and give its path."""
    for name, text in _FILES.items():
        path = directory / "tau_bench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return directory
