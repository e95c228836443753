"""First Token: continuous synthetic monitoring of LLM APIs from where their users are."""

__version__ = "0.1.0"
