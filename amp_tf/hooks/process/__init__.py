"""State and messages of the whole process: settings in force, warnings, the line at exit, the report's files."""
