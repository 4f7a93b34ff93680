"""ask_user: a question of the model's, answered by the person at the terminal."""

from __future__ import annotations

from radchat.agent.tools.schema import arguments, string
from radchat.agent.types import Call, Context, Kind, Outcome, Preview, Question


class AskUser:
    name = "ask_user"
    description = "Ask the user a question, when you can't go on without the answer."
    parameters = arguments(
        {"question": string("in a sentence or two")},
        choices={
            "type": "array",
            "items": {"type": "string"},
            "description": "answers to choose from",
        },
    )
    kind: Kind = "ask"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:  # noqa: ARG002
        return Preview(f"ask_user {call.arguments.get('question')}")

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:  # noqa: ARG002
        if context.ask_user is None:
            return Outcome("there is nobody to ask: go on by your own judgement", "error")
        choices = call.arguments.get("choices") or ()
        question = Question(str(call.arguments["question"]), tuple(map(str, choices)))
        answer = context.ask_user(question)
        if answer is None:
            return Outcome("the user did not answer", "denied")
        return Outcome(answer)
