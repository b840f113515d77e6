"""The verbs. No logic: every verb parses, calls the package, and prints."""
