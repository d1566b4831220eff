"""Models as callers give them: accepted or refused, looked at without a trace, and run as far as needed."""
