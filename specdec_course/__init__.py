"""Runs the course: command line, build, checks, hints, progress, widgets and grading."""
