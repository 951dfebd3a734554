"""Events come in: remote HTTP APIs are polled, and what they say is published to the event log."""
