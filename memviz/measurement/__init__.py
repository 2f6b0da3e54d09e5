"""Model and setup to profiles from a real run in a child process."""
