"""ExpeL: rules with votes, drawn from successes and failures, and the successes themselves as examples.

Writes after each judged run: the Manager sees the numbered rules and the trial, with the last trial of the same
question that ended the other way if there is one, and replies with up to four operations. A new rule counts 2; AGREE
and EDIT add 1, REMOVE takes 1 (3 when the list is overfull); a rule at 0 is dropped. Numbers are those of the list as
it was shown, and one that is not on it makes the reply unreadable. Then the trial is stored. A run that nobody judged
teaches nothing yet. Reads before the run: all rules, the most important first, and the k successes whose questions are
most like the one asked, answers included, as in the source. Rules name no final answer: it is blotted out.

Source: arXiv 2308.10144 and its released code. There rules are drawn after all trials, by pairs and by groups of eight
successes; here after each run, as the original does, since questions come as a stream. Left out: retries with
reflection while collecting trials. (The original looked up rules with weights that were never set, so that none was
ever found, and took the number of a rule among the nearest three for its place in the whole list.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from inference.methods.notebook import Change, Changed, Item, New, Notebook, Removed
from inference.methods.notes import Manager, NotesMethod
from inference.methods.rag import new_trace, trace_note
from inference.methods.traces import asked, loaded, text, turns
from inference.runs import Run
from inference.verdicts import Form, read_form
from memory_serve.workflow import without_answer
from mia.chat import ChatModel
from mia.errors import ParseError
from mia.prompts import Trusted, prompt
from mia.types import Judgement, Note, Question

MAX_OPERATIONS = 4
MAX_RULES = 20
"""Length of the list from which the Manager is asked to remove rather than to add."""
OVERFULL = MAX_RULES + 5
"""Length from which a removal weighs three times as much."""
_NEW = 2
_KINDS = {True: "success", False: "failure"}
_HINT = "The list is full: remove first, and add only what is very different from all others."


class Operation(Form):
    """One change of the list; `rule` is a number of the list as it was shown, from 1."""

    operation: Literal["ADD", "EDIT", "AGREE", "REMOVE"]
    rule: int | None = Field(None, ge=1)
    text: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Operation:
        if (self.operation == "ADD") != (self.rule is None):
            raise ValueError("rule: every operation but ADD needs one, ADD has none")
        if (self.operation in ("ADD", "EDIT")) != bool(self.text.strip()):
            raise ValueError("text: ADD and EDIT need one, AGREE and REMOVE have none")
        return self


class Operations(Form):
    """What the Manager replies."""

    operations: list[Operation] = Field(max_length=MAX_OPERATIONS)


class ExpelMethod(NotesMethod):
    """`expel`.

    Args:
        notebook: where the notes are.
        room: see `NotesMethod`.
        manager: draws the rules.
    """

    def __init__(self, notebook: Notebook, room: int, manager: ChatModel) -> None:
        super().__init__(notebook, room)
        self._manager = Manager(manager)

    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """See `NotesMethod.notes`."""
        rules = [rule for rule in await self._rules() if question.id not in rule.sources]
        found = await self.notebook.nearest("success", asked(question), k, skip, question.id)
        share = self.room // (len(found) + 1)
        shown = prompt("expel/rules").render(rules=_numbered(rules))
        return [*([Note(id="rules", text=shown)] if rules else []), *(trace_note(each, share) for each in found)]

    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change] | None:
        """See `NotesMethod.changes`."""
        if judgement.correct is None:
            return None
        rules = await self._rules()
        shown = prompt("expel/update").render(
            trials=Trusted(await self._trials(run, judgement.correct)),
            rules=_numbered(rules) or Trusted("(none yet)"),
            most=str(MAX_OPERATIONS),
            hint=Trusted(_HINT if len(rules) >= MAX_RULES else ""),
        )
        wanted = await self._manager.ask(shown, lambda reply: read_operations(reply, len(rules)), "rules")
        cleared = [op.model_copy(update={"text": without_answer(op.text.strip(), run)}) for op in wanted.operations]
        return [new_trace(run, judgement.outcome, _KINDS[judgement.correct]), *revise(rules, cleared)]

    async def _rules(self) -> list[Item]:
        """All rules, the most important first; of two alike the older."""
        return sorted(await self.notebook.items("rule"), key=lambda rule: -_votes(rule))

    async def _trials(self, run: Run, correct: bool) -> str:
        others = [item for item in await self.notebook.items(_KINDS[not correct]) if run.question.id in item.sources]
        told = {correct: turns(run)} | ({not correct: loaded(others[-1].data["turns"])} if others else {})
        room = self._manager.room // (2 * len(told))
        return "\n\n".join(
            prompt("expel/trial").render(
                result=Trusted("Successful" if won else "Failed"),
                question=told[won][0][1],
                trace=text(told[won], room),
            )
            for won in (True, False)
            if won in told
        )


def read_operations(reply: str, rules: int) -> Operations:
    """The operations in a reply on a list of so many rules.

    Raises:
        ParseError: the reply is not of the form, names a rule that is not there, or one rule twice.
    """
    wanted = read_form(reply, Operations)
    named = [op.rule for op in wanted.operations if op.rule is not None]
    if any(number > rules for number in named):
        raise ParseError(f"rule: {max(named)} is not the number of a rule, there are {rules}")
    if len(set(named)) < len(named):
        raise ParseError("rule: one rule has two operations")
    return wanted


def revise(rules: Sequence[Item], operations: Sequence[Operation]) -> list[Change]:
    """What operations change in a list of rules. A rule that would be added a second time is left; one that is edited
    into another one is a vote for that one. (ExpeL's `update_rules`.)

    Args:
        rules: in the order they were shown.
        operations: numbers are places in `rules`, from 1.
    """
    votes = {place: _votes(rule) for place, rule in enumerate(rules)}
    texts = {place: str(rule.data["text"]) for place, rule in enumerate(rules)}
    places = {_plain(known): place for place, known in reversed(texts.items())}
    edited: set[int] = set()
    added: list[str] = []
    for op in operations:
        same = places.get(_plain(op.text))
        if op.rule is None:
            if same is None and _plain(op.text) not in map(_plain, added):
                added.append(op.text)
        elif op.operation == "REMOVE":
            votes[op.rule - 1] -= 3 if len(rules) >= OVERFULL else 1
        elif op.operation == "EDIT" and same is None:
            edited.add(op.rule - 1)
            texts[op.rule - 1] = op.text
            votes[op.rule - 1] += 1
        else:
            votes[op.rule - 1 if op.operation == "AGREE" or same is None else same] += 1
    changes: list[Change] = []
    for place, rule in enumerate(rules):
        if votes[place] <= 0:
            changes.append(Removed(rule.number))
        elif votes[place] != _votes(rule) or place in edited:
            changes.append(
                Changed(rule.number, {"text": texts[place], "votes": votes[place]}, rewritten=place in edited)
            )
    return [*changes, *(New("rule", {"text": new, "votes": _NEW}) for new in added)]


def _votes(rule: Item) -> int:
    votes = rule.data["votes"]
    assert isinstance(votes, int)
    return votes


def _numbered(rules: Sequence[Item]) -> str:
    return "\n".join(f"{number}. {rule.data['text']}" for number, rule in enumerate(rules, 1))


def _plain(rule: str) -> str:
    return " ".join(rule.casefold().split()).rstrip(".")
