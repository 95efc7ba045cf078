"""The programs behind the commands, one module each: read these first."""
