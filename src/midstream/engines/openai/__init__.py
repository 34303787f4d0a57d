"""Sample from any server that speaks the OpenAI chat or completions protocol."""
