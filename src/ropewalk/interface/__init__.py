"""Environment, task, episode, tools: the one native definition of an environment."""
