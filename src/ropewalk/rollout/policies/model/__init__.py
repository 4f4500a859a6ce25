"""`openai`: any model behind an OpenAI-compatible chat completions endpoint."""
