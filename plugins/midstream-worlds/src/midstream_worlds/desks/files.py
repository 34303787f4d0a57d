"""The file desk: folders with text files, one of them open."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from midstream_worlds.desks.desk import Desk, Goal, Result, Step, Values, function, refusal

FOLDERS = ("archive", "drafts", "garden", "letters", "music", "plans", "recipes", "travels")
FILES = tuple(
    """apples boat chairs dates errands fences guests hats ideas jars keys lamps maps nuts oars paints
    quilts roofs seeds tools""".split()
)
THINGS = ("blue paint", "new rope", "old wood", "ripe pears", "round stones", "soft wool", "thin wire", "warm bread")
DEEDS = ("ask the neighbor", "call the mill", "order more", "start early", "take the cart", "wait for rain")


@dataclass
class Files(Desk):
    """A cabinet of folders. Files are read and written in the folder that is open."""

    folders: dict[str, dict[str, str]] = field(default_factory=dict)
    current: str = ""

    @classmethod
    def stocked(cls, draws: Random) -> Files:
        """Three folders; each thing is spoken of in one file at most."""
        names, things = draws.sample(FILES, 6), draws.sample(THINGS, 6)
        texts = {name: f"Of {thing}: {draws.choice(DEEDS)}" for name, thing in zip(names, things, strict=True)}
        folders = draws.sample(FOLDERS, 3)
        return cls(
            folders={folder: {name: texts[name] for name in names[i::3]} for i, folder in enumerate(folders)},
            current=folders[0],
        )

    @property
    def here(self) -> dict[str, str]:
        """The open folder's files."""
        return self.folders[self.current]

    @function()
    def list_folder(self) -> Result:
        """Lists the files of the open folder, and all folders."""
        return {"folder": self.current, "files": sorted(self.here), "folders": sorted(self.folders)}

    @function(folder="its name")
    def open_folder(self, folder: str) -> Result:
        """Opens another folder."""
        if folder not in self.folders:
            return refusal(f"there is no folder {folder}")
        self.current = folder
        return {"folder": folder}

    @function(folder="its name")
    def make_folder(self, folder: str) -> Result:
        """Makes an empty folder; the open one stays open."""
        if folder in self.folders:
            return refusal(f"there is a folder {folder} already")
        self.folders[folder] = {}
        return {"made": folder}

    @function(file="its name", text="what it says")
    def write_file(self, file: str, text: str) -> Result:
        """Writes a new file in the open folder."""
        if file in self.here:
            return refusal(f"there is a file {file} already")
        self.here[file] = text
        return {"file": file, "characters": len(text)}

    @function(file="its name", line="what to add")
    def add_line(self, file: str, line: str) -> Result:
        """Adds a line to a file of the open folder."""
        if file not in self.here:
            return refusal(f"there is no file {file} here")
        self.here[file] += f"\n{line}"
        return {"file": file, "lines": self.here[file].count("\n") + 1}

    @function(file="its name")
    def read_file(self, file: str) -> Result:
        """Reads a file of the open folder."""
        return {"file": file, "text": self.here[file]} if file in self.here else refusal(f"no file {file} is here")

    @function(file="its name", copy="the copy's name")
    def copy_file(self, file: str, copy: str) -> Result:
        """Copies a file within the open folder."""
        if file not in self.here or copy in self.here:
            return refusal(f"{file} cannot be copied as {copy}")
        self.here[copy] = self.here[file]
        return {"file": file, "copied_as": copy}

    @function(file="its name", folder="where to")
    def move_file(self, file: str, folder: str) -> Result:
        """Moves a file of the open folder into another."""
        if file not in self.here or file in self.folders.get(folder, (file,)):
            return refusal(f"{file} cannot be moved into {folder}")
        self.folders[folder][file] = self.here.pop(file)
        return {"file": file, "folder": folder}

    @function(file="its name")
    def delete_file(self, file: str) -> Result:
        """Deletes a file of the open folder."""
        if file not in self.here:
            return refusal(f"there is no file {file} here")
        del self.here[file]
        return {"deleted": file}

    @function(file="its name")
    def count_words(self, file: str) -> Result:
        """Counts the words of a file of the open folder."""
        if file not in self.here:
            return refusal(f"there is no file {file} here")
        return {"file": file, "words": len(self.here[file].split())}

    @function(words="what to look for")
    def find_text(self, words: str) -> Result:
        """Finds the first file of the open folder, by name, whose text has these words."""
        found = sorted(file for file, text in self.here.items() if words in text)
        return {"file": found[0]} if found else refusal(f"no file here speaks of {words}")


def _file(desk: Files, draws: Random) -> Values | None:
    return {"file": draws.choice(sorted(desk.here))} if desk.here else None


def _new(desk: Files, draws: Random) -> Values | None:
    left = [name for name in FILES if all(name not in files for files in desk.folders.values())]
    return {"file": draws.choice(left), "text": draws.choice(DEEDS)} if left else None


def _line(desk: Files, draws: Random) -> Values | None:
    found = _file(desk, draws)
    return found and {**found, "line": draws.choice(DEEDS)}


def _copy(desk: Files, draws: Random) -> Values | None:
    found, new = _file(desk, draws), _new(desk, draws)
    return {**found, "copy": new["file"]} if found and new else None


def _other(desk: Files, draws: Random) -> Values:
    return {"folder": draws.choice([folder for folder in sorted(desk.folders) if folder != desk.current])}


def _move(desk: Files, draws: Random) -> Values | None:
    found, other = _file(desk, draws), _other(desk, draws)
    return {**found, **other} if found and found["file"] not in desk.folders[str(other["folder"])] else None


def _unmade(desk: Files, draws: Random) -> Values | None:
    left = [folder for folder in FOLDERS if folder not in desk.folders]
    return {"folder": draws.choice(left)} if left else None


def _words(desk: Files, draws: Random) -> Values | None:
    found = [thing for thing in THINGS if any(thing in text for text in desk.here.values())]
    return {"words": draws.choice(found)} if found else None


_FIND = Step("find_text", {"words": "{words}"})

GOALS = (
    Goal(
        texts=("Write a new file '{file}' that says '{text}'.", "I need a file '{file}' with the text '{text}'."),
        steps=(Step("write_file", {"file": "{file}", "text": "{text}"}),),
        draw=_new,
        vague=(("Write a new file '{file}' for me.", "It should say '{text}'."),),
        hold="write_file",
    ),
    Goal(
        texts=("Add the line '{line}' to the file '{file}'.",),
        steps=(Step("add_line", {"file": "{file}", "line": "{line}"}),),
        draw=_line,
        vague=(("Add a line to the file '{file}'.", "The line is '{line}'."),),
    ),
    Goal(
        texts=("Copy the file '{file}' as '{copy}'.",),
        steps=(Step("copy_file", {"file": "{file}", "copy": "{copy}"}),),
        draw=_copy,
        vague=(("Make a copy of the file '{file}'.", "Call the copy '{copy}'."),),
    ),
    Goal(
        texts=("Move the file '{file}' into the folder '{folder}'.",),
        steps=(Step("move_file", {"file": "{file}", "folder": "{folder}"}),),
        draw=_move,
        vague=(("Move the file '{file}' away from here.", "It belongs into '{folder}'."),),
    ),
    Goal(
        texts=("Delete the file '{file}'.", "Nobody needs the file '{file}', get rid of it."),
        steps=(Step("delete_file", {"file": "{file}"}),),
        draw=_file,
        vague=(("One of the files can go.", "I mean the file called '{file}'."),),
        hold="delete_file",
    ),
    Goal(
        texts=("Which file here speaks of '{words}'? Read it to me.",),
        steps=(_FIND, Step("read_file", {"file": "$file"})),
        draw=_words,
    ),
    Goal(
        texts=("Find the file here that speaks of '{words}' and delete it.",),
        steps=(_FIND, Step("delete_file", {"file": "$file"})),
        draw=_words,
        hold="delete_file",
    ),
    Goal(
        texts=("Open the folder '{folder}'.", "Let us continue in the folder '{folder}'."),
        steps=(Step("open_folder", {"folder": "{folder}"}),),
        draw=_other,
        vague=(("Let us continue in another folder.", "I mean the folder called '{folder}'."),),
        hold="open_folder",
    ),
    Goal(
        texts=("Make a folder '{folder}' and open it.",),
        steps=(Step("make_folder", {"folder": "{folder}"}), Step("open_folder", {"folder": "{folder}"})),
        draw=_unmade,
    ),
    Goal(
        texts=("Make a new folder called '{folder}'.",),
        steps=(Step("make_folder", {"folder": "{folder}"}),),
        draw=_unmade,
        vague=(("I need one more folder.", "Call it '{folder}'."),),
        hold="make_folder",
    ),
    Goal(
        texts=("How many words does the file '{file}' have?",),
        steps=(Step("count_words", {"file": "{file}"}),),
        draw=_file,
    ),
    Goal(texts=("Which files are in this folder?",), steps=(Step("list_folder"),)),
)
