"""Rendering a finished conversation once, for `rollout.capture=retokenize`."""

from swe_rl.agent.protocol import AgentResult
from swe_rl.model.chat import ChatRenderer
from swe_rl.rollout.batch import Render
from swe_rl.rollout.retokenize import Rendered


def conversation_renderer(renderer: ChatRenderer) -> Render:
    """Renders `AgentResult.messages` and `tools` as a template would, and finds the assistant's spans in the ids."""

    def render(result: AgentResult) -> Rendered:
        ids, spans = renderer.whole(result.messages, result.tools)
        return Rendered(tuple(ids), tuple(spans))

    return render
