"""The programs behind the commands, one module each: read these first. Their parts are in rooms."""
