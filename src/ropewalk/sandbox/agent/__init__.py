"""The guest agent, a static program in C: made of `agent/src`, left here by the build, one per architecture."""

from ropewalk.sandbox.agent.program import NAME, PLACE, program

__all__ = ["NAME", "PLACE", "program"]
