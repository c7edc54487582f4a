"""The training runtime, each part measured beside what a good engineer would write and what others have written."""
