"""A-Mem: notes that describe, link and rewrite each other.

Writes after every run, whatever its outcome, which it is not told: a note of the conversation, answer included, with
keywords, a context sentence and tags by the Manager. Then the Manager sees the five notes most like it and may link the
new note with them, mend its tags, and rewrite context and tags of these neighbours. Notes are named by the number they
are shown with, from 1; a number that was not shown makes the reply unreadable, and nothing of the run is stored. What
is rewritten gets a new vector at once. Reads before the run: the k notes most like the question, then up to k notes
linked with them.

Source: arXiv 2502.12110 (note construction, links, evolution) and its released code (five neighbours; links followed on
reading). What a note is found by begins with its question, description and tags, since the encoder reads only so much.
The released code asks a model for the keywords of a question before it looks for notes; the paper does not. (The
original returned nothing unless links were many, took any number for a link, and lost the Executor's first turn.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field, JsonValue

from inference.methods.notebook import Change, Changed, Data, Item, New, Notebook
from inference.methods.notes import Manager, NotesMethod
from inference.methods.traces import Turn, asked, loaded, stored, text, turns
from inference.runs import Run
from inference.verdicts import Form, read_form
from mia.chat import ChatModel
from mia.errors import ParseError
from mia.prompts import Trusted, prompt
from mia.types import Judgement, Note, Question

NEIGHBOURS = 5
_SHOWN_BYTES = 1500
"""Length of the conversation in a note that the Manager compares with others."""
_LABELS_BYTES = 60
"""Length of the words that stand before question, context, keywords and tags, at most."""


class Description(Form):
    """What the Manager says a note is about."""

    keywords: list[str] = Field(min_length=1)
    context: str = Field(min_length=1)
    tags: list[str] = Field(min_length=1)


class Update(Form):
    """New context and tags of a neighbour, by its number."""

    note: int
    context: str = Field(min_length=1)
    tags: list[str] = Field(min_length=1)


class Evolution(Form):
    """How a new note and its neighbours belong together; notes by their numbers."""

    links: list[int]
    tags: list[str]
    updates: list[Update]


class AMemMethod(NotesMethod):
    """`amem`.

    Args:
        notebook: where the notes are.
        room: see `NotesMethod`.
        manager: describes notes and lets them evolve.
    """

    def __init__(self, notebook: Notebook, room: int, manager: ChatModel) -> None:
        super().__init__(notebook, room)
        self._manager = Manager(manager)

    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """See `NotesMethod.notes`."""
        found = await self.notebook.nearest("note", asked(question), k, skip, question.id)
        near = {each.item.number: each.similarity for each in found}
        ahead = dict.fromkeys(number for each in found for number in _links(each.item) if number not in near)
        linked = [item for item in await self.notebook.some(list(ahead)) if question.id not in item.sources][:k]
        items = [*(each.item for each in found), *linked]
        share = self.room // max(1, len(items))
        return [Note(id=i.id, text=_shown(i.data, share), similarity=near.get(i.number, 0.0)) for i in items]

    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change]:
        """See `NotesMethod.changes`."""
        conversation = turns(run)
        shown = prompt("amem/describe").render(content=_content(conversation, self._manager.room))
        described = await self._manager.ask(shown, lambda reply: read_form(reply, Description), "description")
        data: Data = {"turns": stored(conversation), **described.model_dump(), "links": []}
        neighbours = await self.notebook.nearest("note", _searched(data), NEIGHBOURS)
        if not neighbours:
            return [New("note", data, text=_searched(data))]
        return await self._evolved(data, [each.item for each in neighbours])

    async def _evolved(self, data: Data, neighbours: Sequence[Item]) -> Sequence[Change]:
        shown = [f"[{number}] {_shown(item.data, _SHOWN_BYTES)}" for number, item in enumerate(neighbours, 1)]
        asking = prompt("amem/evolve").render(note=_shown(data, _SHOWN_BYTES), neighbours=Trusted("\n\n".join(shown)))
        evolution = await self._manager.ask(asking, lambda reply: read_evolution(reply, len(neighbours)), "links")
        links: list[JsonValue] = [neighbours[number - 1].number for number in dict.fromkeys(evolution.links)]
        data = {**data, "links": links, **_tags(evolution.tags)}
        changes: list[Change] = [New("note", data, text=_searched(data))]
        for update in evolution.updates:
            old = neighbours[update.note - 1]
            new: Data = {**old.data, "context": update.context, **_tags(update.tags)}
            changes.append(Changed(old.number, new, text=_searched(new)))
        return changes


def read_evolution(reply: str, neighbours: int) -> Evolution:
    """How notes evolve, as a reply on so many neighbours says.

    Raises:
        ParseError: it is not of the form, names a note that was not shown, or rewrites one twice.
    """
    evolution = read_form(reply, Evolution)
    updated = [update.note for update in evolution.updates]
    for number in (*evolution.links, *updated):
        if not 1 <= number <= neighbours:
            raise ParseError(f"{number} is not the number of a note, there are {neighbours}")
    if len(set(updated)) < len(updated):
        raise ParseError("updates: one note stands twice")
    return evolution


def _tags(tags: Iterable[str]) -> Mapping[str, JsonValue]:
    made: list[JsonValue] = [*tags]
    return {"tags": made} if made else {}


def _links(item: Item) -> list[int]:
    links = item.data["links"]
    assert isinstance(links, list)
    return [number for number in links if isinstance(number, int)]


def _words(data: Data, name: str) -> str:
    words = data[name]
    assert isinstance(words, list)
    return ", ".join(map(str, words))


def _content(conversation: Sequence[Turn], room: int) -> str:
    return prompt("amem/content").render(question=conversation[0][1], trace=text(conversation, room))


def _shown(data: Data, room: int) -> str:
    """A note as a model reads it, of about `room` bytes: what describes it is whole, the conversation is cut."""
    conversation = loaded(data["turns"])
    described = {"context": str(data["context"]), "keywords": _words(data, "keywords"), "tags": _words(data, "tags")}
    taken = sum(len(part.encode()) for part in (*described.values(), conversation[0][1])) + _LABELS_BYTES
    return prompt("amem/note").render(content=_content(conversation, max(0, room - taken)), **described)


def _searched(data: Data) -> str:
    """What a note is found by: all of it (paper, section 3.1), what describes it first."""
    conversation = loaded(data["turns"])
    described = (str(data["context"]), _words(data, "keywords"), _words(data, "tags"))
    return "\n".join((conversation[0][1], *described, text(conversation, _SHOWN_BYTES)))
